"""A study's trials as an Optuna study, for Optuna's dashboard and analyses."""
