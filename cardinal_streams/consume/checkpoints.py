"""Where a consumer's checkpoint is kept: on the node that it reads from. An application with a database of its own
keeps it there instead, in the transaction that applies the update, and so processes every update once.

On the node a checkpoint is two things. The whole text is the last message of a stream of the client's own
(`checkpoint_stream`), and the position of each partition is saved in the index service under the client's id, where
`stream-node index list` shows its lag. The text is what counts: it is one message, so it is never half of one state
and half of another. The index service can only move a partition back, to read it again, never forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

import msgspec

from cardinal_streams.consume.checkpoint_text import format_checkpoint, parse_checkpoint
from cardinal_streams.machines.consumer_events import Checkpoint
from cardinal_streams.resumption import source_of, split_source
from cardinal_streams.transports.transport import is_reorg_topic
from stream_client import LAST, RequestRefused, Retention, SavedIndexes, Stream, StreamClient

# The last one is what is read; a few before it are left for who wants to look.
KEPT_CHECKPOINTS = 16


class CheckpointStore(Protocol):
    """Keeps the last checkpoint of one consumer."""

    async def load(self) -> Checkpoint | None:
        """None if nothing was ever saved."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """It is kept when this returns."""


class NodeCheckpoints:
    """`CheckpointStore` on a node.

    Two consumers with one client id both get everything, and go on where the last one to save had come. Raises the
    client's errors, and `CheckpointError` for a text that cannot be read.
    """

    def __init__(self, client: StreamClient, client_id: str) -> None:
        self.client_id = client_id
        self._client = client
        self._indexes = SavedIndexes(client, client_id)
        self._stream: Stream | None = None

    async def load(self) -> Checkpoint | None:
        stream = await self._open()
        page = await stream.pull_page(LAST, 1)
        if not page.messages:
            return None
        checkpoint = parse_checkpoint(page.messages[-1].data)
        position = dict(checkpoint.position)
        for topic, offsets in _by_topic(position).items():
            saved = await self._indexes.load(topic, list(offsets))
            for partition, index in zip(offsets, saved, strict=True):
                position[source_of(topic, partition)] = min(index, offsets[partition])
        if position == checkpoint.position:
            return checkpoint
        # Somebody wants to have it read again, so all of it counts.
        return msgspec.structs.replace(checkpoint, position=position, read={}, needed=())

    async def save(self, checkpoint: Checkpoint) -> None:
        """The text first: an index without it would be of no use, and without an index the partition is read again."""
        stream = await self._open()
        await stream.push(format_checkpoint(checkpoint))
        for topic, offsets in _by_topic(checkpoint.position).items():
            await self._indexes.save(topic, offsets)

    async def _open(self) -> Stream:
        if self._stream is None:
            stream = await self._client.create(checkpoint_stream(self.client_id))
            # A node without retentions keeps them all, which costs only room.
            with contextlib.suppress(RequestRefused):
                await stream.set_retention(Retention(messages=KEPT_CHECKPOINTS))
            self._stream = stream
        return self._stream


def checkpoint_stream(client_id: str) -> str:
    """The name of the stream with the checkpoints of this client id."""
    return f"cardinal.checkpoints.{client_id}"


def _by_topic(position: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """The offsets of the normal feed, by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for source, offset in position.items():
        topic, partition = split_source(source)
        if not is_reorg_topic(topic):
            found.setdefault(topic, {})[partition] = offset
    return found
