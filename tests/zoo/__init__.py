"""Architectures of other libraries, trained merged and alone: `python -m tests.zoo`."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
