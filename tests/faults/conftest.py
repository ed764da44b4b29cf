"""The faults' searches are those of the flows' tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "flows"))
