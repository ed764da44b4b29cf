"""Sections of services that run jobs on clusters, one file a service; `operators` has those for Kubernetes."""
