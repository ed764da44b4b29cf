"""Tests of `nasflow.training_service.ssh`."""
