"""Kernels: how one operation runs for several members at once, one file an operation family; `registry` finds them.

Imports `tape` and the rooms before it.
"""
