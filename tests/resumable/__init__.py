"""Tests of `nasflow.resumable`."""
