"""Waits for work that must not be left half done when the caller is cancelled, for example by Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Waits until `work` has ended, even if the caller is cancelled; the CancelledError is raised after that.

    Otherwise `work`, such as a thread that writes files, could continue after the exporter has released the folder's
    lock.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
