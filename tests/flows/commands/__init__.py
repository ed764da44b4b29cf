"""Tests of `nasflow.flows.commands`."""
