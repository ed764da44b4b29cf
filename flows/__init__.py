"""The search as Prefect flows, and the command line. The only room that imports Prefect."""
