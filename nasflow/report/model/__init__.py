"""A model's modules, as a plain tree and as a picture."""
