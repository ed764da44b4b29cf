"""Runs jobs on Kubernetes: the service, the Jobs it submits, what states of pods mean, and requests to the server."""
