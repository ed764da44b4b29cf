"""Access to the Prefect server: client, errors, secrets and automations. Of `flows`, it imports only the room `ui`."""
