"""The batches of a job: a loader whose order depends only on the seed and the epoch, and runs of equal batches.

Imports members' loaders and leaves: nothing of units or jobs.
"""
