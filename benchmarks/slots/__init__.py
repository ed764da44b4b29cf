"""How busy the slots of a cluster are, with and without rounds that overlap: `python -m benchmarks.slots`."""
