"""A unit's plan for people: as plain values, and as a picture. Imports `run` and the rooms before it."""
