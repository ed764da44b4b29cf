"""`nasflow deploy` and `nasflow serve`: a search as a Prefect deployment, and when it runs."""
