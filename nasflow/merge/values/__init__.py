"""How the tensors of several members lie in memory: parameters, activations, and frozen tensors that are shared.

Imports `trace`.
"""
