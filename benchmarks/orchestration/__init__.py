"""What a search costs beside training: `python -m benchmarks.orchestration`."""
