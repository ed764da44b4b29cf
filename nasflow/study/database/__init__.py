"""The database of studies: its tables and sessions, how its URL is read, and the checks before it is used.

Imports the study's records, the config's secrets and leaves.
"""
