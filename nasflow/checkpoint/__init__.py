"""Checkpoints of trials: states packed as JSON and tensors, in files on disk or at a URL. Nothing is pickled.

Does not depend on models, members or training (`nasflow.training.member_checkpoints` decides which store a job uses).
Imports only leaves.
"""
