"""Ray Tune with a trainable that does nothing, in Ray's own environment, without nasflow.

`python -m benchmarks.orchestration.ray TRIALS --slots 2 --folder DIR [--reuse]` starts its own Ray.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune


def nothing(config: dict[str, Any]) -> None:
    """Report a value at once."""
    tune.report({"value": config["lr"]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int)
    parser.add_argument("--slots", type=int, required=True, help="trials at a time")
    parser.add_argument("--folder", type=Path, required=True, help="for Tune's results")
    parser.add_argument("--reuse", action="store_true", help="actors live on from trial to trial")
    options = parser.parse_args()
    # its sockets need short paths
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as place:
        ray.init(num_cpus=options.slots, include_dashboard=False, _temp_dir=place)
        done = tune_nothing(options)
        ray.shutdown()
    if done != options.trials:
        sys.exit(f"{done} of {options.trials} trials are complete")


def tune_nothing(options: argparse.Namespace) -> int:
    """Run the trials. Return how many finished."""
    tuner = tune.Tuner(
        nothing,
        param_space={"lr": tune.loguniform(1e-3, 1e-2)},
        tune_config=tune.TuneConfig(metric="value", mode="max", num_samples=options.trials, reuse_actors=options.reuse),
        run_config=tune.RunConfig(name="nothing", storage_path=str(options.folder), verbose=0),
    )
    return sum(result.error is None and "value" in (result.metrics or {}) for result in tuner.fit())


if __name__ == "__main__":
    main()
