"""The changes are tested with the costs of the training room's tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "training"))
