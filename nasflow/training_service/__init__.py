"""Where jobs run. `base.py` is the contract; each service has a room, and the other rooms hold what services share.

Imports the job's spec and events, the config and leaves: nothing of training, and nothing of the study.
"""
