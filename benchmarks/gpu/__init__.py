"""All that is worth knowing of nasflow on a GPU, in one command: `python -m benchmarks.gpu --minutes 9 --out DIR`."""
