"""Searches by each strategy."""
