"""What nasflow asks of a Prefect server: its errors, secrets and automations. Imports no other room of `flows`."""
