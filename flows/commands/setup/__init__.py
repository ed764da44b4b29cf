"""`nasflow setup`: prepares a Prefect server for searches."""
