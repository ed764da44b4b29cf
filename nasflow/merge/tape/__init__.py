"""Parts of a merged model that run as a fixed list of calls, forward and backward, without autograd.

Imports `values`.
"""
