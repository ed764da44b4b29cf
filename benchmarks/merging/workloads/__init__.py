"""The workloads of the merging benchmark, one per file."""
