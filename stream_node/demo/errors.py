"""The error of a demo that fails."""

from __future__ import annotations


class DemoFailed(Exception):
    """A promise was broken, or a step did not end; the text says which."""
