"""Tests of `nasflow.checkpoint`."""
