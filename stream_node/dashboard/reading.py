"""ReadWaiting: the operation that finds, in a reading thread, the consumers whose next message has waited longest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio
from sqlalchemy import Integer, bindparam, func, literal_column, select

from index_service.statements import compiled
from index_service.storage import saved_indexes
from storage.contract import Operation, Session
from storage.errors import StorageClosed
from storage.schema import messages, streams
from storage.thread_runner import ThreadRunner


class Waiting(msgspec.Struct, frozen=True):
    """A partition with messages that a consumer has not processed.

    index: the next message of the consumer. lag: the number of waiting messages.
    since_us: since when the consumer makes no progress, although a message is there, in microseconds since 1970.
    """

    client_id: str
    stream: str
    partition: int
    index: int
    lag: int
    since_us: int


_ZERO = literal_column("0", Integer)
_next = func.max(saved_indexes.c.idx, streams.c.first_index, type_=Integer)
_since = func.max(saved_indexes.c.saved_us, messages.c.time_us, type_=Integer).label("since_us")
_WAITING = compiled(
    select(
        saved_indexes.c.client_id,
        saved_indexes.c.stream_name,
        saved_indexes.c.partition,
        _next,
        streams.c.next_index - _next,
        _since,
    )
    .select_from(
        saved_indexes.join(
            streams,
            (streams.c.name == saved_indexes.c.stream_name) & (streams.c.partition == saved_indexes.c.partition),
        ).join(messages, (messages.c.stream_id == streams.c.id) & (messages.c.idx == _next))
    )
    .order_by(_since)
    .limit(bindparam("most"))
    .offset(_ZERO)
)


class ReadWaiting(Operation):
    """Reads the partitions in which a consumer has waited longest. most: the largest number of partitions."""

    __slots__ = ("found", "most")

    def __init__(self, most: int, on_done: Callable[[ReadWaiting], None]) -> None:
        super().__init__(on_done)
        self.most = most
        self.found: list[Waiting] = []

    def apply(self, session: Session) -> None:
        self.found = [Waiting(*row) for row in session.connection.execute(_WAITING, {"most": self.most})]


async def read_waiting(runner: ThreadRunner, most: int) -> list[Waiting]:
    """Returns the partitions in which a consumer has waited longest. Raises StorageError."""
    done = trio.Event()
    operation = ReadWaiting(most, lambda operation: done.set())
    try:
        runner.submit_read(operation)
    except StorageClosed:
        # The node is stopping.
        return []
    await done.wait()
    if operation.error is not None:
        raise operation.error
    return operation.found
