"""Neural architecture search as a Prefect pipeline. Only `nasflow.flows`, the search itself, imports Prefect."""
