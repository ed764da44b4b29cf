"""What the merging benchmark trains, a workload a file."""
