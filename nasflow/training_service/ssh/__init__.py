"""Runs jobs on hosts over SSH: the service, its agent on each host, and copies of the hosts' files.

Imports `connect`, `ship` and, for what the agent runs, `local`.
"""
