"""Tests of `nasflow.training_service.local`."""
