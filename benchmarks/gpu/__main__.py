"""`python -m benchmarks.gpu`: see `--help`."""

import sys

from benchmarks.gpu.command import main

if __name__ == "__main__":
    sys.exit(main())
