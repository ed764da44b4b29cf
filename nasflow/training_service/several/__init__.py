"""Runs the jobs of one study on several services at once. Imports `files` and the contract."""
