"""Tests of `nasflow.merge.tape`."""
