"""`nasflow setup`: what a Prefect server needs for searches."""
