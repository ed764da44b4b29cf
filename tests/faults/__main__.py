"""Run the fault suite: `python -m tests.faults --help`."""

import sys

from tests.faults.command import main

if __name__ == "__main__":
    sys.exit(main())
