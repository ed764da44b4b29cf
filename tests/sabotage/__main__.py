"""Change the code for the worse and see what catches it: `python -m tests.sabotage --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as pytest does it

if __name__ == "__main__":
    from sabotage_command import main

    sys.exit(main())
