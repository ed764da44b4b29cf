"""What runs in NNI's own environment: an experiment and its trial program, without nasflow."""
