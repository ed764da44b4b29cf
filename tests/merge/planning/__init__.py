"""Tests of `nasflow.merge.planning`."""
