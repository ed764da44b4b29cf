"""The trust suite runs jobs as the tests of the training room do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "training"))
