"""Tests of `nasflow.native`."""
