"""Tests of `nasflow.training.device`."""
