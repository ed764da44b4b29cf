"""Steps of LightningModules that run once for all members of a unit.

Imports what `lockstep` imports, and its files; `unit/grouping.py` forms its units.
"""
