"""One long search with a kill every minute: what its processes hold of the machine must not grow."""
