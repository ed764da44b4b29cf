"""The durable record of a search: its rounds, trials, attempts and metrics, in a database.

Imports the config, trials and leaves: no evaluators, no strategies, nothing of jobs.
"""
