"""Spaces, LightningModules, data and passes that jobs of the tests name by import path."""
