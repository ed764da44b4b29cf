"""Tests of `nasflow.space`."""
