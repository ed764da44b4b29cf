"""What nasflow asks of the operating system and of Python itself: processes, small files, caches, the collector.

Imports nothing else of nasflow.
"""
