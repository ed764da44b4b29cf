"""Tests of `nasflow.strategy`."""
