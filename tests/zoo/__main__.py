"""Run the zoo: `python -m tests.zoo --help`."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "training")]  # as pytest does it
os.environ["HF_HUB_OFFLINE"] = "1"

if __name__ == "__main__":
    from zoo_command import main

    sys.exit(main())
