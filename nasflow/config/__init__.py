"""The search config: one YAML file, or the same as a Python object, says everything about a search.

A file for each section; `search.py` holds the whole. Imports only `nasflow.errors` and `nasflow.clean_text`.
"""

from nasflow.config.search import SearchConfig, load_config

__all__ = ["SearchConfig", "load_config"]
