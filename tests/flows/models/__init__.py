"""Spaces, data and programs that searches of the tests name by import path."""
