"""The report of a study as one HTML file that needs no server and no network."""
