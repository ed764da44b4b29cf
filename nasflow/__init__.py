"""Neural architecture search as a Prefect pipeline. `nasflow.flows` has the search flow; the other rooms import no Prefect."""
