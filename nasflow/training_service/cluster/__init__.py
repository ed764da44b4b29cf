"""Jobs on clusters with a scheduler of their own that see the study's root folder: Slurm, Ray, Dask.

Imports `files`, `machine` and, for the jobs' processes, `local`.
"""
