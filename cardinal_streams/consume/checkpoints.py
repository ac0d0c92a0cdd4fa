"""Saves the checkpoint of a consumer on the node that the consumer reads from, or in a file.

An application with its own database should save the checkpoint there, in the transaction that applies the update: then
every update is processed exactly once. On the node, the text is the last message of a stream that belongs to the client
id (`checkpoint_stream`). The index service also gets the offset up to which each partition was read. So the command
`stream-node index list` shows the consumer's lag, and an operator can set an offset back to read the partition again
from there. If the consumer runs meanwhile, its next save raises `PositionReset`.

The text is JSON. `Checkpoint` explains the fields:

    {"version": 1, "start": {"hash": "0x…", "number": 7, "weight": "0x…"},
     "position": "topic:partition=offset;…", "history": "",
     "open_reorgs": [{"hash": "0x…", "number": 5, "offset": 0, "is_begun": true, "removed_weight": "0x…"}],
     "finished_reorgs": [{"ancestor": "0x…"}],
     "read": "topic:partition=offset;…", "needed": ["0x…"], "created": "topic:partition=microseconds;…",
     "given_up": {"0x…": "topic:partition=offset;…"}, "first_number": 3}

Positions have the form of resumption tokens (see `transports.transport`). `created`, `given_up` and `first_number` can
be left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from anyio import to_thread

from cardinal_streams.errors import CheckpointError, CheckpointTaken, ResumptionError
from cardinal_streams.limits import HASH_BYTES, U64_MAX
from cardinal_streams.machines.events import Checkpoint, OpenReorg, Start
from cardinal_streams.transports.transport import (
    format_token,
    is_reorg_topic,
    parse_token,
    source_of,
    split_source,
)
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


VERSION = 1
HashText = Annotated[str, msgspec.Meta(pattern=rf"\A0x[0-9a-f]{{{2 * HASH_BYTES}}}\Z")]
WeightText = Annotated[str, msgspec.Meta(pattern=r"\A0x[0-9a-f]{1,64}\Z")]


class StartText(msgspec.Struct, forbid_unknown_fields=True):
    hash: HashText
    number: int
    weight: WeightText


class OpenText(msgspec.Struct, forbid_unknown_fields=True):
    hash: HashText
    number: int
    offset: int
    is_begun: bool
    removed_weight: WeightText


class FinishedText(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    ancestor: HashText
    # Older programs wrote the first block of a finished reorg, which is not read any more.
    first_block: str = ""


class CheckpointText(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    start: StartText | None
    position: str
    history: str
    open_reorgs: list[OpenText]
    finished_reorgs: list[FinishedText]
    read: str = ""
    needed: list[HashText] = []
    created: str | msgspec.UnsetType = msgspec.UNSET
    given_up: dict[HashText, str] | msgspec.UnsetType = msgspec.UNSET
    first_number: int | msgspec.UnsetType = msgspec.UNSET


_READER = msgspec.json.Decoder(CheckpointText)


def format_checkpoint(checkpoint: Checkpoint) -> bytes:
    start = checkpoint.start
    return msgspec.json.encode(
        CheckpointText(
            version=VERSION,
            start=None if start is None else StartText(_hex(start.hash), start.number, hex(start.weight)),
            position=format_token(checkpoint.position),
            history=format_token(checkpoint.history),
            open_reorgs=[
                OpenText(_hex(each.hash), each.number, each.offset, each.is_begun, hex(each.removed_weight))
                for each in checkpoint.open_reorgs
            ],
            finished_reorgs=[FinishedText(_hex(ancestor)) for ancestor in checkpoint.finished_reorgs],
            read=format_token(checkpoint.read),
            needed=[_hex(hash_) for hash_ in checkpoint.needed],
            created=format_token(checkpoint.created) if checkpoint.created else msgspec.UNSET,
            given_up={_hex(hash_): format_token(each) for hash_, each in checkpoint.given_up.items()} or msgspec.UNSET,
            first_number=checkpoint.first_number or msgspec.UNSET,
        )
    )


def parse_checkpoint(text: bytes) -> Checkpoint:
    """Reads a checkpoint that `format_checkpoint` wrote. Raises `CheckpointError` for any other text."""
    try:
        found = _READER.decode(text)
        position, history, read = map(parse_token, (found.position, found.history, found.read))
        created = parse_token(found.created or "")
        given_up = {_hash(hash_): parse_token(token) for hash_, token in (found.given_up or {}).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, ResumptionError) as error:
        raise CheckpointError(f"the text is no checkpoint: {error}") from error
    if found.version != VERSION:
        raise CheckpointError(f"the checkpoint has version {found.version}; this program reads version {VERSION}")
    if sum(reorg.is_begun for reorg in found.open_reorgs) > 1:
        raise CheckpointError("the text is no checkpoint: two reorgs are begun at once")
    start = found.start
    open_reorgs = [
        OpenReorg(
            _hash(each.hash), _number(each.number), _number(each.offset), each.is_begun, int(each.removed_weight, 16)
        )
        for each in found.open_reorgs
    ]
    return Checkpoint(
        start=None if start is None else Start(_hash(start.hash), _number(start.number), int(start.weight, 16)),
        position=position,
        history=history,
        open_reorgs=tuple(open_reorgs),
        finished_reorgs=tuple(_hash(each.ancestor) for each in found.finished_reorgs),
        read=read,
        needed=tuple(map(_hash, found.needed)),
        first_number=_number(found.first_number or 0),
        created=created,
        given_up=given_up,
    )


def _hash(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _number(number: int) -> int:
    if not 0 <= number <= U64_MAX:
        raise CheckpointError(f"{number} is outside of 0 to {U64_MAX}")
    return number


def _hex(raw: bytes) -> str:
    return f"0x{raw.hex()}"
