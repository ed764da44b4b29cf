"""Code that a controller and its jobs share: a job's spec, its events, and the attribution of crashes.

Both sides import it, so it loads no torch. Imports the config, spaces' architectures, and leaves.
"""
