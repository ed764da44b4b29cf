"""Custom jobs that can be resumed from any epoch, on one node or several. After Caffe2's Job.

Imports checkpoints and leaves.
"""
