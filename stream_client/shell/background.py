"""Background tasks of a client that live as long as an `async with` block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def background_tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Gives a task group for the `async with` block, and cancels its tasks when the block ends."""
    body_error: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except anyio.get_cancelled_exc_class():
            # The task group itself must see a cancellation.
            raise
        except BaseException as error:
            body_error = error
        finally:
            tasks.cancel_scope.cancel()
    # A task group alone would raise the block's error inside an exception group, which an `except ClientError` of the
    # caller does not catch.
    if body_error is not None:
        raise body_error
