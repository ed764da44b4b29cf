"""Runs jobs. `base.py` is the contract; each service has a room, and the other rooms hold code that services share.

Imports the job's spec and events, the config and leaves; nothing of training or the study.
"""
