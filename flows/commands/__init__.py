"""What the commands of `cli.py` do: a file a command, and what only commands use.

The flows beside this folder import nothing of it, but those that do a command's work on a schedule: recover, retention.
"""
