"""Train random models merged and alone: `python -m tests.trust --help`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "training")]  # as pytest does it

if __name__ == "__main__":
    from trust_command import main

    sys.exit(main())
