"""Runs jobs on clusters with a scheduler of their own and access to the study's root folder: Slurm, Ray, Dask.

Imports `files`, `machine` and, for the jobs' processes, `local`.
"""
