"""Inside the job: its program, members, checkpoints and events."""
