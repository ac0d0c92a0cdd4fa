"""One file-system layer for tables in folders and on object stores. `place.py` reads the addresses of tables."""

from __future__ import annotations

__all__: list[str] = []
