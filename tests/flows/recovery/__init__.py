"""Tests of `nasflow.flows.recover`."""
