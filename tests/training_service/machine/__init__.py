"""Tests of `nasflow.training_service.machine`."""
