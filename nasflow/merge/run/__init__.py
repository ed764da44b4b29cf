"""Runs a plan: the merged model of several members, or one member's model as it is.

Imports `planning` and the rooms before it.
"""
