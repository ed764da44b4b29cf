"""Tests of `nasflow.report`."""
