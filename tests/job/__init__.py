"""Tests of `nasflow.job`."""
