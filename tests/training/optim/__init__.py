"""Tests of `nasflow.training.optim`."""
