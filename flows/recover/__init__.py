"""Searches that are dead: found by facts, and resumed."""
