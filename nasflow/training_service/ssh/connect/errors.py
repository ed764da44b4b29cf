"""Errors on the way to a host.

A `ServiceError` is a mistake in a config or on a host that stays until someone fixes it: an unknown key, a refused
login, a missing Python. An `Unreachable` may pass by itself: a running search tries again later.
"""

from nasflow.errors import ServiceError


class Unreachable(ServiceError):  # noqa: N818 - it is a state of the host
    """A host does not answer now, or the connection broke; whether a request was carried out is unknown."""


class Refused(ServiceError):  # noqa: N818 - likewise
    """A host was asked for a login, and accepts none of our keys, nor the password."""
