"""What the Prefect UI shows of a search: artifacts, the flow run's page, events. Imports no other room of `flows`."""
