"""A trained model in a folder of its own: weights, choices, code, and a script that rebuilds and scores it."""
