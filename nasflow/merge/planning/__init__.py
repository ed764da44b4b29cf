"""Decides which members form a unit and which kernel runs each operation, by the measured costs of kernels.

Imports `kernels` and the rooms before it.
"""
