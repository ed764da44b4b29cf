"""Fixtures of several rooms' tests."""

from postgresql import postgresql_server

__all__ = ["postgresql_server"]
