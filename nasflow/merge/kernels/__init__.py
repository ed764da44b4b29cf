"""Kernels: how one operation runs for several members at a time."""
