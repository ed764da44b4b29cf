"""`nasflow hosts check` and `nasflow services check`: say where jobs can't run, and how to mend it."""
