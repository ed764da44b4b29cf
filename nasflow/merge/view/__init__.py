"""Shows a unit's plan, as plain values and as a picture. Imports `run` and the rooms before it."""
