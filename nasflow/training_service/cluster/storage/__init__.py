"""Where a cluster's nodes find the files of jobs, and how what they write comes back: `storage` of the config.

A new one subclasses `base.Storage`. Every `cluster.base.ClusterService` works with each of them.
"""
