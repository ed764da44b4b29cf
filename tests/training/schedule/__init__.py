"""Tests of `nasflow.training.schedule`."""
