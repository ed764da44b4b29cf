"""Runs jobs on hosted services, which are reached by a web API with a secret: OpenPAI, DLTS, PAI-DLC, Azure ML.

`http_client` is the client of those without an SDK: timeouts, answers of bounded size, no secret in a message. A new
service subclasses `base.HostedService`. Imports `cluster`, `files` and, for the jobs' environment, `local`.
"""
