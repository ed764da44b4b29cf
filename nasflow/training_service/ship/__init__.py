"""Packs the code shipped to hosts: the user's code folder, and nasflow itself. Imports no other room."""
