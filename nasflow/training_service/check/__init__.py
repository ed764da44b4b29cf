"""Checks a training service by a small job that it runs as it runs a training job.

`job` is what runs on the node, `service_check` submits it and follows it, `judge` says what is wrong and how to mend
it.
"""
