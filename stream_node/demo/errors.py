"""The error of a failed demo."""

from __future__ import annotations


class DemoFailed(Exception):
    """A promise was broken, or a step of the demo did not end in time. The text says which."""
