"""`nasflow doctor`: checks everything that searches need."""
