"""Tests of `nasflow.merge.view`."""
