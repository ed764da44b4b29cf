"""Run the zoo: `python -m tests.zoo --help`."""

import sys

from tests.zoo.command import main

if __name__ == "__main__":
    sys.exit(main())
