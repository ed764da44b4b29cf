"""Faults of what training services use: clusters, object stores and work pools, all real or stand-ins on this machine.

`base` says what a service under faults is; `kinds` lists the services. Imports nothing of `tests.faults.campaign`.
"""
