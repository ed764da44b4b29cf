"""Real searches under faults: `python -m tests.faults`."""
