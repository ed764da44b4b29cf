"""Contract suites for those who add a strategy or a training service. Imports pytest; imported by nothing."""
