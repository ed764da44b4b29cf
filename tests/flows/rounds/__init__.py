"""Tests of the tasks of a round."""
