"""The devices of a job's process: which there are, their settings, and whether they still answer after an error.

Imports `config`, `errors`, `system` and `training.batches`.
"""
