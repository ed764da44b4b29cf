"""Stretches of a merged model that run as a straight line of calls, forward and backward, without autograd.

Imports `values`.
"""
