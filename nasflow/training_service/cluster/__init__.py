"""Runs jobs on clusters that have a scheduler and access to the study's root folder: Slurm, Ray, Dask, Kubernetes.

A new one subclasses `base.ClusterService`. Imports `files`, `machine` and, for the jobs' environment, `local`.
"""
