"""A bare Optuna study with an empty objective: `python -m benchmarks.orchestration.optuna TRIALS`."""

import argparse
import sys

import optuna


def nothing(trial: optuna.Trial) -> float:
    """Suggest one value and return it at once."""
    return trial.suggest_float("lr", 1e-3, 1e-2, log=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=int)
    parser.add_argument("--storage", help="Optuna storage URL; default: in memory")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=options.storage, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(nothing, n_trials=options.trials)
    done = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    if len(done) != options.trials:
        sys.exit(f"{len(done)} of {options.trials} trials are complete")


if __name__ == "__main__":
    main()
