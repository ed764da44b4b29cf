"""Tests of `nasflow.study`."""
