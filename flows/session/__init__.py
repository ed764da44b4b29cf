"""What the flows of one search share in one process, and how the search is asked to stop."""
