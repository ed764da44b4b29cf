"""Tests of `nasflow.training`."""
