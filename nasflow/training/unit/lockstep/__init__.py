"""Fuses LightningModules of the user: each step runs as written, and pauses where it calls its model.

Imports what `unit` imports; `unit/grouping.py` forms its units.
"""
