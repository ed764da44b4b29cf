"""Tests of `nasflow.merge`."""
