"""The programs that run in NNI's own environment, without nasflow: an experiment and its trial program."""
