"""What goes wrong on the way to a host.

A `ServiceError` is a mistake in a config, or on a host, that stays until someone mends it: an unknown key, a refused
login, a missing Python. An `Unreachable` may pass by itself: whoever is in the middle of a search tries again later.
"""

from nasflow.errors import ServiceError


class Unreachable(ServiceError):  # noqa: N818 - it is a state of the host
    """A host does not answer now, or the connection to it broke; whether it did what it was asked to is unknown."""


class Refused(ServiceError):  # noqa: N818 - likewise
    """A host answers, but we don't trust its key, or it lets none of ours in."""
