"""What ranks save after each epoch, and how services carry it to other machines.

Imports nothing else of `wide`.
"""
