"""What can vary. `architecture.py` holds one choice of everything; the modules beside it make, change and build it."""
