"""Secrets of a config: passwords in URLs, and where texts come from that are not in the config.

Imports nothing of the sections.
"""
