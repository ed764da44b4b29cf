"""Tests of `nasflow.training.member`."""
