"""Trials that train in processes of their own, one at a time: a user's function, or any program. Nothing is merged.

Imports the training job, whose course it follows.
"""
