"""Tests of `nasflow.flows.ui`."""
