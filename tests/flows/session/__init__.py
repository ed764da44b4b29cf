"""Tests of `nasflow.flows.session`."""
