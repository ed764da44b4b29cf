"""The text of an export's `score.py`."""

SCORE_SCRIPT = '''"""Rebuild this trained model, and score it on the validation data of its search.

    python score.py --base-dir DIR           prints JSON; exits with 1 if a metric differs from the recorded one
    from score import load; model = load()   the trained torch.nn.Module, in eval mode on the CPU

Made by nasflow, which must be installed. The model's weights are in model.safetensors (those of layers that its
LightningModule has beside it in module.safetensors), its choices in architecture.json; search.json has the space, the
evaluator and the recorded metrics; code/ has the search's own code, but not its data. Relative paths, such as those of
data, start in code/, or in DIR: name the folder in which they started in the search, that of its config.
"""

import argparse
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CODE = HERE / "code"
TOLERANCE = 1e-6  # relative for metrics above 1 in size


def _read(name):
    return json.loads((HERE / name).read_text())


def _targets(section):
    if isinstance(section, dict):
        yield from (value for key, value in section.items() if key == "target" and isinstance(value, str))
        section = list(section.values())
    if isinstance(section, list):
        for each in section:
            yield from _targets(each)


def _refuse_hidden(search):
    from nasflow.errors import UserError

    places = [target.rpartition(":")[0] for target in _targets([search["space"], search["evaluator"]])]
    folders = [CODE, *((CODE / place).parent for place in places if place.endswith(".py"))]  # where Python looks
    for file in (folder / "score.py" for folder in folders):
        if file.exists() and not file.with_name("__init__.py").exists():
            raise UserError(f"{__file__} hides {file}, which code may import: rename it, and import load from it")


def _parts(base_dir):
    search = _read("search.json")
    if __name__ == "score":
        _refuse_hidden(search)
    default = CODE if CODE.is_dir() else HERE  # where it was empty, git has left it out
    paths = default if base_dir is None else Path(base_dir).absolute()
    return search, _read("architecture.json"), HERE / "model.safetensors", CODE, paths


def load(base_dir=None):
    """Return the trained model; relative paths start in `base_dir`."""
    from nasflow.training.scoring import load_model

    return load_model(*_parts(base_dir))


def score(base_dir=None):
    """Return the model's metrics on the validation data; relative paths start in `base_dir`."""
    from nasflow.training.scoring import score_model

    return score_model(*_parts(base_dir))


def main(arguments=()):
    from nasflow.errors import NasflowError

    parser = argparse.ArgumentParser(description="Score this trained model on the validation data of its search.")
    parser.add_argument("--base-dir", metavar="DIR", help="where relative paths start, such as of data; default: code/")
    options = parser.parse_args(arguments)
    search = _read("search.json")
    try:
        metrics = score(options.base_dir)
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
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]  # code/ may have a score.py, too
    sys.exit(main(sys.argv[1:]))
'''
