"""What a member's module sees of Lightning: its hooks, and the member's trainer.

Imports nothing else of `member` but `optimization`.
"""
