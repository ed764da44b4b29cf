"""What a controller and the job that it started share: the job's spec, its events, and whom to blame for a crash.

Both sides import it, so it loads no torch. Imports the config, spaces' architectures, and leaves.
"""
