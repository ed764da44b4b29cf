"""What merging gains: `python -m benchmarks.merging WORKLOAD`. The workloads are in benchmarks/merging/workloads."""
