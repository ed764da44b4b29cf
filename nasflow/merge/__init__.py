"""Many candidates into one model, and how it runs.

A staircase of rooms, each of which imports only those before it: `trace`, `values`, `tape`, `kernels`, `planning`,
`run`, `view`.
"""
