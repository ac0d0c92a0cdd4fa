"""What a user of the bench can get wrong, and what can go wrong with those it compares with."""

from __future__ import annotations


class UnknownBench(Exception):
    """There is no measurement or no peer of that name, or the prototype given does not print figures."""


class PeerFailed(Exception):
    """A server to compare with did not start, or its client failed."""
