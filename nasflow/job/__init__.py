"""Code that a controller and its jobs share: a job's spec, its events, and its recorded activity.

Both sides import it, so it loads no torch. Imports the config, spaces' architectures, and leaves.
"""
