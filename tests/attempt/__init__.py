"""Tests of `nasflow.attempt`."""
