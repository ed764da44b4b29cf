"""Files in a study's root folder by which controllers and workers know of each other's jobs.

Imports the contract of training services.
"""
