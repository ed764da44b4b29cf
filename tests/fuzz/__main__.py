"""Feed damaged input to what reads it: `python -m tests.fuzz --help`."""

import sys

from tests.fuzz.command import main

if __name__ == "__main__":
    sys.exit(main())
