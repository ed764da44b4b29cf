"""Tests of `nasflow.merge.kernels`."""
