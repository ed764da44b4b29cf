"""Tests of `nasflow.merge.run`."""
