"""How a candidate is trained and scored: the `evaluator` section, whose `kind` chooses a class of `union`.

Imports the rest of the config only.
"""
