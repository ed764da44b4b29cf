"""Tests of `nasflow.flows`."""
