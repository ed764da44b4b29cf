"""The work of the commands of `cli.py`, one file or room per command. Only `cli.py` imports it.

`results` has the commands that read a study; `console`, `options`, `progress`, `schedules`, `views` are shared parts.
"""
