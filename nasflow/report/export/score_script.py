"""The text of an export's `score.py`."""

SCORE_SCRIPT = '''"""Rebuild this trained model, and score it on the validation data of its search.

    python score.py                          prints JSON; exits with 1 if a metric differs from the recorded one
    from score import load; model = load()   the trained torch.nn.Module, in eval mode on the CPU

Made by nasflow, which must be installed. The model's weights are in model.safetensors (those of layers that its
LightningModule has beside it in module.safetensors), its choices in architecture.json; search.json has the space, the
evaluator and the recorded metrics; code/ has the search's own code.
"""

import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-6  # relative for metrics above 1 in size


def _read(name):
    return json.loads((HERE / name).read_text())


def _parts():
    return _read("search.json"), _read("architecture.json"), HERE / "model.safetensors", HERE / "code"


def load():
    """Return the trained model."""
    from nasflow.training.scoring import load_model

    return load_model(*_parts())


def score():
    """Return the model's metrics on the validation data."""
    from nasflow.training.scoring import score_model

    return score_model(*_parts())


def main():
    from nasflow.errors import NasflowError

    search = _read("search.json")
    try:
        metrics = score()
    except NasflowError as error:
        sys.exit(f"error: {error}")
    recorded = search["metrics"]
    names = sorted(recorded.keys() & metrics.keys())
    different = [n for n in names if not abs(metrics[n] - recorded[n]) <= TOLERANCE * max(1.0, abs(recorded[n]))]
    objectives = [o["metric"] for o in search["objectives"]]
    missing = [name for name in objectives if name in recorded and name not in metrics]
    shown = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    print(json.dumps({"metrics": shown, "recorded": recorded, "different": different, "missing": missing}, indent=2))
    return 1 if different or missing else 0


if __name__ == "__main__":
    sys.exit(main())
'''
