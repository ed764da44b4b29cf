"""The state that the flows of one search share in one process, and its control from outside."""
