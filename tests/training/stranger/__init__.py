"""Training code, data and recipes as strangers bring them, in odd combinations."""
