"""Where jobs run: the section of each training service, and what they have in common.

Imports the rest of the config only.
"""
