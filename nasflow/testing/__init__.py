"""Contract suites for authors of strategies and training services. Imports pytest; no other room imports it."""
