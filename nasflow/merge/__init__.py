"""Merges many candidates into one model and runs it.

Its rooms, each of which imports only those before it: `trace`, `values`, `tape`, `kernels`, `planning`, `run`, `view`.
"""
