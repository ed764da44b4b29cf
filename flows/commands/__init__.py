"""What the commands of `cli.py` do: a file or a room a command. Nothing beside `cli.py` imports it."""
