"""`nasflow run`, `nasflow retry` and `nasflow recover`: a search in this process, with its progress."""
