"""Many candidates into one job."""
