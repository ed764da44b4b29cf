"""A plan put to work: the merged model of several members, or one member's model as it is.

Imports `planning` and the rooms before it.
"""
