"""The optimizers of several members, stepped as one. Imports only `native`."""
