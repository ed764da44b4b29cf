"""Tests of `nasflow.training_service.ship`."""
