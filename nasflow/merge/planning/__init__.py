"""Which members form a unit and which kernel runs each operation, by what kernels were measured to cost.

Imports `kernels` and the rooms before it.
"""
