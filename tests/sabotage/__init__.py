"""Whether a mistake in the code would be noticed: `python -m tests.sabotage`."""
