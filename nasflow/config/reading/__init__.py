"""How a config is read and put on record: YAML files, errors that name the key, values that can be recorded.

Imports nothing of the sections.
"""
