"""How the tensors of several members are stored: parameters, activations, and frozen tensors that are shared.

Imports `trace`.
"""
