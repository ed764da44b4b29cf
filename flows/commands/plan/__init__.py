"""`nasflow plan`: shows how trials of a search would be merged."""
