"""Tests of `nasflow.merge.trace`."""
