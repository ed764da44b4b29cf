"""`nasflow report`: a study as one HTML file."""
