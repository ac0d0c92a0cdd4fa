"""Erases messages from a table, keeps them erased, and records that."""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256
from typing import Any

from spark_export.exporter.history import ExportHistory
from spark_export.tables.log import TableLog


async def forget(
    log: TableLog, history: ExportHistory, stream: str, key: bytes | None, *, keep_s: float
) -> dict[str, Any]:
    """Erases the messages of a stream, or those with one key, that the node has stored until now.

    Later runs leave out such messages. keep_s: how long older versions of the table, which still have the rows, are
    kept for their readers. Returns what was done, for a report. Raises ExportError.
    """
    until_us = time.time_ns() // 1000
    rows = await asyncio.to_thread(log.forget, stream, key, until_us)
    expired = await asyncio.to_thread(log.expire, keep_s)
    done = {"stream": stream, "key_sha256": None if key is None else sha256(key).hexdigest(), "until_us": until_us}
    done |= {"rows": rows, "expired": expired}
    await history.add_record("forget", done)
    return done
