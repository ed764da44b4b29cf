"""`nasflow report`: writes a study as one HTML file."""
