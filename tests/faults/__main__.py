"""Run the fault suite: `python -m tests.faults --help`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "flows")]  # as pytest does it

if __name__ == "__main__":
    from fault_command import main

    sys.exit(main())
