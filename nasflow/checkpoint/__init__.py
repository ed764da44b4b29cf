"""Checkpoints of trials: states packed as JSON and tensors, in files on disk or at a URL. Nothing is pickled.

Knows nothing of models, members or training (`nasflow.training.member_checkpoints` decides which store a job uses).
Imports only leaves.
"""
