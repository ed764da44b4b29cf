"""`nasflow doctor`: whether everything that searches need is in order."""
