"""What a member logs, and what its metrics keep from batch to batch.

Imports nothing else of `member`.
"""
