"""Moves the last messages of a stream to another stream, because the source of the stream does not have them.
The messages are copied first and cut then, both in steps of one transaction each. After a kill in between, the next
start goes on: the other stream shows how far the copying has come."""

from __future__ import annotations

from functools import partial

import structlog

from index_service.storage import lower_positions
from stream_node.fleet.mirror.mirror import LocalStream
from stream_service.mirror_operations import AnyChange, begin_aside, copy_aside, cut_tail
from stream_service.mirror_rows import MirrorRow
from stream_service.names import NAME_BYTES_MAX
from stream_service.stored import StoredStream
from stream_storage.contract import Session
from stream_storage.history import History

ASIDE = ".aside-"
ID_DIGITS = 12

logger = structlog.get_logger(__name__)


def aside_name(name: str, new_id: str) -> str:
    """Returns a name for the stream that gets the messages which the stream `name` cannot keep."""
    ending = ASIDE + new_id[:ID_DIGITS]
    begin = name.encode()[: NAME_BYTES_MAX - len(ending)].decode(errors="ignore")
    return begin + ending


async def set_aside(stream: LocalStream, row: MirrorRow, index: int, source_history: History) -> None:
    """Moves the messages from `index` on to another stream, at the same indexes. Raises StorageError, MirrorError.
    source_history: the history of the source, whose entries stay."""
    directory, (name, partition) = stream.directory, stream.identity
    stream_id = stream.get_worker().bounds.stream_id
    to = "" if row.aside_messages else row.aside_name
    while True:
        # 1. Store the name of the other stream. A node that was killed in the next steps goes on with the same stream.
        if not to:
            to = aside_name(name, directory.new_id())
            await stream.change(partial(begin_aside, name=to))
        # 2. Copy, until the other stream has everything.
        step = partial(copy_aside, stream_id=stream_id, index=index, partition=partition, created_us=directory.now_us())
        copied = await stream.write(partial(step, name=to))
        if copied.done:
            break
        if not copied.fits:
            # The source parts at another index than before the kill. The old copies stay in their stream.
            logger.warning("messages_set_aside_anew", stream=name, partition=partition, from_index=index, besides=to)
            directory.reopen_stream(StoredStream(copied.record, 0, None))
            to = ""
    count = copied.record.next_index - copied.record.first_index
    # 3. Cut. Only the last step of the cut stores that all messages are moved.
    await cut(stream, index, source_history, count)
    # 4. Serve the other stream. A worker that runs already has not seen the copies.
    directory.reopen_stream(StoredStream(copied.record, 0, None))
    logger.warning("messages_set_aside", stream=name, partition=partition, messages=count, from_index=index, kept_in=to)


async def cut(stream: LocalStream, index: int, source_history: History, aside_messages: int = 0) -> None:
    """Cuts all messages from `index` on, in steps, and lowers the positions of consumers. Raises StorageError,
    MirrorError.
    aside_messages: the number of messages that were moved to another stream; stored with the last step."""
    now_us = stream.directory.now_us()

    def step(session: Session, change: AnyChange) -> bool:
        is_last = cut_tail(session, change, index, source_history, aside_messages)
        # The indexes from here on get other messages, which a consumer with a higher position would miss.
        end = session.log.get_stream(change.stream_id).next_index
        lower_positions(session, *stream.identity, end, now_us, renews_all=True)
        return is_last

    while not (await stream.change(step)).result:
        pass
