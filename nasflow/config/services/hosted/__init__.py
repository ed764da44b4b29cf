"""Sections of hosted services, one file a service; `base` has what they share."""
