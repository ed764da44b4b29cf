"""Kernels: how one operation runs for several members at once."""
