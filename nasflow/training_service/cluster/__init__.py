"""Runs jobs on clusters that have a scheduler and access to the study's root folder: Slurm, Ray, Dask.

Imports `files`, `machine` and, for the jobs' processes, `local`.
"""
