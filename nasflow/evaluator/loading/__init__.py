"""The data of a search: loaded once, a share of them or folds taken, labels counted.

Imports `config` and leaves, nothing else of `evaluator`.
"""
