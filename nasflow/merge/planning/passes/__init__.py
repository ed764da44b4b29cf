"""Passes over the logical plan; each is a callable that rewrites it in place."""
