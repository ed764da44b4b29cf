"""One trial inside a job: its model, optimizer, schedules, random streams and logged metrics.

Imports nothing of the other rooms of `training`.
"""
