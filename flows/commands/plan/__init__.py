"""`nasflow plan`: how trials of a search would be merged."""
