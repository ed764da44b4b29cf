"""Tests of `nasflow.config`."""
