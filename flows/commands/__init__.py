"""The work of the commands of `cli.py`, one file or room per command. Only `cli.py` imports it."""
