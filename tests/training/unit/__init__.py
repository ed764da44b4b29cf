"""Tests of `nasflow.training.unit`."""
