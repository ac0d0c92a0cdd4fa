"""Keeps a consumer's checkpoint on the node that the consumer reads from. An application with a database of its own
should keep the checkpoint in that database, in the transaction that applies the update: then every update is processed
exactly once.

On the node a checkpoint consists of two parts. The checkpoint's text is the last message of a stream that belongs to
the client id (`checkpoint_stream`). The position of each partition is saved in the index service under the client id,
so that `stream-node index list` shows the consumer's lag. The text decides where reading goes on: a text is one
message, so it never mixes two states. A position in the index service can only move a partition back, to have it read
again.
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
    """The interface of what keeps the last checkpoint of one consumer."""

    async def load(self) -> Checkpoint | None:
        """The checkpoint that was saved last; None if there is none."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Saves a checkpoint. The checkpoint is durable when this returns."""


class NodeCheckpoints:
    """A `CheckpointStore` on a node.

    When two consumers use one client id, both receive everything, and after a restart both go on at the checkpoint
    that was saved last. Raises the client's errors, and `CheckpointError` for a text that cannot be read.
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
