"""Optuna's samplers as strategies: architectures as its trials, and the other way.

Imports the strategies' base, scores and what strategies import.
"""
