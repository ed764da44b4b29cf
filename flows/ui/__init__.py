"""What a search shows in the Prefect UI: artifacts, the flow run's page, events. Imports no other room of `flows`."""
