"""Runs jobs on this machine: the service, its workers and their slots. Imports `files` and `machine`."""
