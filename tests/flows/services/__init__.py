"""Searches on hosts, and on several services at once."""
