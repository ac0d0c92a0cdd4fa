"""What a user of the bench can get wrong."""

from __future__ import annotations


class UnknownBench(Exception):
    """There is no measurement of that name, or the prototype given does not print figures."""
