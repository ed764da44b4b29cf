"""The study's database with many trials: `python -m benchmarks.study`."""
