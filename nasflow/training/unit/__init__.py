"""Units: members that are stepped together, how they are grouped, and how they are compared with their own models.

Imports members and the stacked optimizers.
"""
