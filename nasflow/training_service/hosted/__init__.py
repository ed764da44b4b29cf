"""Runs jobs on hosted services, which are reached by a web API with a secret: OpenPAI, DLTS.

`http_client` is their client: timeouts, answers of bounded size, no secret in a message. A new one subclasses
`base.HostedService`. Imports `cluster`, `files` and, for the jobs' environment, `local`.
"""
