"""Train random models merged and alone: `python -m tests.trust --help`."""

import sys

from tests.trust.command import main

if __name__ == "__main__":
    sys.exit(main())
