"""Classification and regression, for one model and for groups of models that are trained together.

`supervised` has the modules; beside it are their optimizers, losses and metrics. Imports `evaluator.base`.
"""
