"""What a member's module sees of Lightning: its hooks, and a trainer of its own.

Imports nothing else of `member` but `optimization`.
"""
