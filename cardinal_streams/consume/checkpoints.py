"""Saves the checkpoint of a consumer on the node that the consumer reads from, or in a file.

An application with its own database should save the checkpoint there, in the transaction that applies the update: then
every update is processed exactly once. On the node, the text is the last message of a stream that belongs to the client
id (`checkpoint_stream`). The index service also gets the offset up to which each partition was read. So the command
`stream-node index list` shows the consumer's lag, and an operator can set an offset back to read the partition again
from there. If the consumer runs meanwhile, its next save raises `PositionReset`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from anyio import to_thread

from cardinal_streams.consume.checkpoint_text import format_checkpoint, parse_checkpoint
from cardinal_streams.errors import CheckpointTaken
from cardinal_streams.machines.events import Checkpoint
from cardinal_streams.resumption import source_of, split_source
from cardinal_streams.transports.transport import is_reorg_topic
from ockam.files.durable_files import write_durably
from stream_client import LAST, PositionReset, RequestRefused, Retention, SavedIndexes, Stream, StreamClient
from stream_client.positions import KnownPosition

# The number of checkpoints that the stream keeps. Only the last one is read; the others help to find errors.
KEPT_CHECKPOINTS = 16


class CheckpointStore(Protocol):
    """The interface of a store that keeps the last checkpoint of one consumer."""

    async def load(self) -> Checkpoint | None:
        """Returns the checkpoint that was saved last; None if no checkpoint was saved."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Saves a checkpoint. The checkpoint is durable when `save` returns."""


class NodeCheckpoints:
    """A `CheckpointStore` on a node. Of two consumers with one client id, the second that saves gets `CheckpointTaken`.
    Raises the client's errors, and `CheckpointError` for a checkpoint that cannot be read."""

    def __init__(self, client: StreamClient, client_id: str) -> None:
        self.client_id = client_id
        self._client = client
        self._indexes = SavedIndexes(client, client_id)
        self._stream: Stream | None = None
        self._marks: dict[str, KnownPosition] = {}
        self._resets: list[str] = []
        # The texts of this consumer that can be the last one in the stream.
        self._last: tuple[bytes, ...] = ()

    async def load(self) -> Checkpoint | None:
        stream = await self._open()
        page = await stream.pull_page(LAST, 1)
        if not page.messages:
            return None
        text = page.messages[-1].data
        self._last = (text,)
        checkpoint = parse_checkpoint(text)
        position = dict(checkpoint.position)
        self._resets.clear()
        is_lowered = False
        # The text decides, unless an operator has set an offset back in the index service.
        for topic, ends in _by_topic(_shown(checkpoint)).items():
            for partition, mark in (await self._resume(topic, list(ends))).items():
                source = source_of(topic, partition)
                # An offset below the text is not lowered if a consumer saved it: the consumer died between the two
                # halves of a save, or a mirror copied the offset before the text. An offset of an older node that
                # equals the position is not lowered either: earlier versions of this program saved it.
                is_old = not mark.generation and mark.index == position[source]
                is_lowered |= mark.may_be_set and mark.index < ends[partition] and not is_old
                position[source] = min(mark.index, position[source])
        if not is_lowered:
            return checkpoint
        # Somebody lowered an offset in order to read messages again, so no message may count as read before.
        return msgspec.structs.replace(checkpoint, position=position, read={}, needed=())

    async def save(self, checkpoint: Checkpoint) -> None:
        """Saves the text of the checkpoint first, then the offset of each partition: a crash in between skips no
        message. Raises `PositionReset` if an offset was set from elsewhere since `load`, and `CheckpointTaken`."""
        stream = await self._open()
        page = await stream.pull_page(LAST, 1)
        # The last text must be ours: two consumers of one name would skip each other's updates.
        before = tuple(message.data for message in page.messages)
        if before and before[0] not in self._last:
            raise CheckpointTaken(self.client_id)
        text = format_checkpoint(checkpoint)
        # If the push fails, either this text or the one before is the last.
        self._last = (*before, text)
        await stream.push(text)
        self._last = (text,)
        for topic, offsets in _by_topic(_shown(checkpoint)).items():
            await self._resume(topic, [each for each in offsets if source_of(topic, each) not in self._marks])
            for partition in offsets:
                # The offsets of a topic that was made again are lower than those that were saved before.
                mark = self._marks[source_of(topic, partition)]
                created_us = checkpoint.created.get(source_of(topic, partition), 0)
                if created_us and not mark.is_of(created_us):
                    await self._indexes.begin(topic, partition, created_us)
                    # Later saves must name this stream: the former mark would move the position to the former stream.
                    mark.created_us = created_us
            await self._indexes.save(topic, offsets)
        # A reset is reported at the end, so that this checkpoint is saved all the same.
        if self._resets:
            source = self._resets[0]
            topic, partition = split_source(source)
            index = await self._indexes.get(topic, partition)
            raise PositionReset(topic, partition, _shown(checkpoint)[source], index)

    async def _resume(self, topic: str, partitions: list[int]) -> dict[int, KnownPosition]:
        """Loads the offsets of these partitions from the index service, with the incarnations of their streams."""

        def reset(partition: int) -> None:
            self._resets.append(source_of(topic, partition))

        found = dict(zip(partitions, await self._indexes.resume(topic, partitions, reset), strict=True))
        self._marks.update({source_of(topic, partition): mark for partition, mark in found.items()})
        return found

    async def _open(self) -> Stream:
        if self._stream is None:
            stream = await self._client.create(checkpoint_stream(self.client_id))
            # A node without retentions keeps all checkpoints, which only costs disk space.
            with contextlib.suppress(RequestRefused):
                await stream.set_retention(Retention(messages=KEPT_CHECKPOINTS))
            self._stream = stream
        return self._stream


class FileCheckpoints:
    """A `CheckpointStore` in one file, for consumers that do not read from a node. Each save replaces the file as a
    whole and durably. Of two consumers with one file, the second that saves gets `CheckpointTaken`. Raises OSError, and
    `CheckpointError` if the file has no valid checkpoint."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # The texts of this consumer that can be in the file; None before the first `load` or `save`.
        self._last: tuple[bytes | None, ...] | None = None

    async def load(self) -> Checkpoint | None:
        return await to_thread.run_sync(self._load)

    async def save(self, checkpoint: Checkpoint) -> None:
        await to_thread.run_sync(self._save, format_checkpoint(checkpoint))

    def _load(self) -> Checkpoint | None:
        text = self._read()
        self._last = (text,)
        return None if text is None else parse_checkpoint(text)

    def _save(self, text: bytes) -> None:
        before = self._read()
        # The text in the file must be ours: two consumers of one file would skip each other's updates.
        if before is not None and self._last is not None and before not in self._last:
            raise CheckpointTaken(str(self.path))
        # If the write fails, the file has either this text or the one before.
        self._last = (before, text)
        write_durably(self.path, text)
        self._last = (text,)

    def _read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None


def checkpoint_stream(client_id: str) -> str:
    return f"cardinal.checkpoints.{client_id}"


def _shown(checkpoint: Checkpoint) -> dict[str, int]:
    return {source: max(offset, checkpoint.read.get(source, 0)) for source, offset in checkpoint.position.items()}


def _by_topic(position: Mapping[str, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for source, offset in position.items():
        topic, partition = split_source(source)
        if not is_reorg_topic(topic):
            found.setdefault(topic, {})[partition] = offset
    return found
