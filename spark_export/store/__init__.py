"""Reads and writes the files of tables, in local folders, on object stores and on HDFS, through one interface.

The class `Store` in `store.py` is the interface. `place.py` parses the addresses of tables.
"""

from __future__ import annotations

__all__: list[str] = []
