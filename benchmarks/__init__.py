"""Benchmarks of speed, as ratios: contestants are interleaved in one run, threads pinned, medians reported."""
