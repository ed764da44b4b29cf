"""Files in a study's root folder through which controllers and workers share the state of jobs.

Imports the contract of training services.
"""
