"""The type of a position's key."""

from __future__ import annotations

from typing import TypeAlias

Key: TypeAlias = tuple[str, str, int]
"""The key of a position: client id, stream name, partition."""
