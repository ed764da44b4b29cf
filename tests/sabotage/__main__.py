"""Change the code for the worse and see what catches it: `python -m tests.sabotage --help`."""

import sys

from tests.sabotage.command import main

if __name__ == "__main__":
    sys.exit(main())
