"""How a job's process starts programs on the other machines of a trial, and how these find it.

Imports nothing else of `wide`.
"""
