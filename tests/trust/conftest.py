"""The trust suite runs jobs like the tests of the training room."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "training"))
