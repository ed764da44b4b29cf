"""The training service whose jobs are flow runs of a Prefect work pool. Imports `server`."""
