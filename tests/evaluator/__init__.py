"""Tests of `nasflow.evaluator`."""
