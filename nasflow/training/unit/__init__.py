"""Units: members that make their steps together, how they are grouped, and how they are compared with their own models.

Imports members and the stacked optimizers.
"""
