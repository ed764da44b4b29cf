"""Translates the config of an NNI experiment into a search config, as far as both have the same things."""
