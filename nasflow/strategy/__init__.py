"""Which candidates to try: ask and tell, a file each strategy; `make` builds the one of a config.

Imports `config`, `space`, `trial` and leaves.
"""
