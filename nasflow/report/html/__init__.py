"""A study as one HTML file that needs no server and no network. Imports the charts and texts of `report`."""
