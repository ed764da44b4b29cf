"""What nasflow asks of the operating system and of Python itself: processes, files and folders, caches, the collector,
logs and random generators.

Imports nothing else of nasflow.
"""
