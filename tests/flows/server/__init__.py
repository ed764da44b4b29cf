"""Tests of `nasflow.flows.server`."""
