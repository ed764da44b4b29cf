"""Which trials of a job train in each epoch, and which are stopped early.

Imports the config and the pruners' libraries; nothing of the other rooms of `training`.
"""
