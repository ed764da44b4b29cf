"""The training services on real servers, their overhead and their results: `python -m benchmarks.services`."""
