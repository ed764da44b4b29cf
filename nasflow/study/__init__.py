"""The durable record of a search."""
