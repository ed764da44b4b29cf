"""Random models, trained merged and alone: `python -m tests.trust`."""
