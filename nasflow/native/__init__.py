"""Inner loops in C for small float32 tensors on one core, where most of a torch call goes into starting it.

Compiled with the machine's own compiler when they are first needed; without one, torch does the same work.
"""
