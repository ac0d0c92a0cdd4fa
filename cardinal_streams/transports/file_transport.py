"""A transport over one file. All sent records are appended to the file, and can be replayed in the same order any
number of times. A subscription ends at the present end of the file: it does not follow a file that grows.

Reading and writing run in worker threads, under trio or asyncio.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec
from anyio import Lock, to_thread

from cardinal_streams.errors import RecordingError, TornRecording
from cardinal_streams.message.types import Record
from cardinal_streams.resumption import source_of, split_source
from cardinal_streams.transports.recording import MAGIC, RecordingReader, encode_deliveries
from cardinal_streams.transports.transport import Delivery, is_reorg_topic, partition_of
from storage.durable_files import sync_names

READ_BYTES = 256 * 1024
# How many deliveries one call to a worker thread fetches.
RECEIVE_MAX = 1_024


class RecorderStatistics(msgspec.Struct, frozen=True):
    """The figures of a recorder. `cut_bytes`: the bytes that were cut off a torn file when it was opened."""

    recorded: int
    cut_bytes: int


class Recorder:
    """Appends deliveries to a recording; makes the file if there is none. Use it in a `with` block.

    A torn file is cut after its last whole record. Raises `RecordingError` for a damaged one, and leaves it alone.
    After an error of the file system the recorder is closed: what was written last may be torn.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.next_offsets: dict[str, int] = {}
        self._recorded = 0
        is_new = not self.path.exists()
        end = 0 if is_new else _scan(self.path, self.next_offsets)
        self._file: BinaryIO | None = open(self.path, "x+b" if is_new else "r+b")  # noqa: SIM115
        self._cut = self._file.seek(0, os.SEEK_END) - end
        self._file.truncate(end)
        self._file.seek(end)
        if end == 0:
            self._write(MAGIC)
        # A file that exists is synced with its folder, too: the process that made it may have been killed before its
        # sync.
        sync_names(self.path)

    def record(self, deliveries: Iterable[Delivery]) -> None:
        """Appends deliveries. They are on disk when this returns."""
        deliveries = list(deliveries)
        self._write(encode_deliveries(deliveries))
        self._recorded += len(deliveries)
        for delivery in deliveries:
            _note(delivery, self.next_offsets)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def statistics(self) -> RecorderStatistics:
        return RecorderStatistics(self._recorded, self._cut)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            raise RecordingError("the recorder is closed", 0)
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self.close()
            raise


def replay(
    path: str | os.PathLike[str],
    topics: Collection[str] | None = None,
    position: Mapping[str, int] | None = None,
    *,
    torn_ok: bool = False,
) -> Generator[Delivery, None, None]:
    """The deliveries of a recording, of these topics or of all topics. Each partition begins at its offset in
    `position`.

    Raises `RecordingError` for damage, and `TornRecording` at the end of a torn file unless that is `torn_ok`.
    """
    reader = RecordingReader()
    first = position or {}
    with Path(path).open("rb") as file:
        while data := file.read(READ_BYTES):
            for delivery in reader.feed(data):
                wanted = topics is None or delivery.topic in topics
                if wanted and delivery.offset >= first.get(delivery.source, 0):
                    yield delivery
    try:
        reader.end()
    except TornRecording:
        if not torn_ok:
            raise


class FileTransport:
    """A `Transport` over one file. Each topic has `partitions` partitions, a reorg's channel has one."""

    def __init__(self, path: str | os.PathLike[str], partitions: int = 1) -> None:
        if partitions < 1:
            raise ValueError(f"{partitions} partitions")
        self.path = Path(path)
        self.partitions = partitions
        self._recorder: Recorder | None = None
        self._lock = Lock()

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Records all records of all topics. They are on disk when this returns. Raises `RecordingError` for a damaged
        file."""
        await self.send_in_order([(topic, record) for topic, records in outgoing.items() for record in records])

    async def send_in_order(self, records: Sequence[tuple[str, Record]]) -> None:
        """Records records of several topics in the order in which they are to be replayed. They are on disk when this
        returns."""
        async with self._lock:
            await to_thread.run_sync(self._send, records)

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        """The end of each partition that has records. Makes the file if it is missing, and does not change it
        otherwise."""
        async with self._lock:
            offsets = await to_thread.run_sync(self._next_offsets)
        return {source: end for source, end in offsets.items() if split_source(source)[0] in topics}

    @asynccontextmanager
    async def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = True
    ) -> AsyncIterator[FileReceiver]:
        """Replays these topics up to the present end of the file; `stop_at_end` makes no difference."""
        receiver = FileReceiver(replay(self.path, topics, position, torn_ok=True))
        try:
            yield receiver
        finally:
            receiver.close()

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def _next_offsets(self) -> dict[str, int]:
        if self._recorder is not None or not self.path.exists():
            return self._open().next_offsets
        offsets: dict[str, int] = {}
        _scan(self.path, offsets)
        return offsets

    def _open(self) -> Recorder:
        if self._recorder is None:
            self._recorder = Recorder(self.path)
        return self._recorder

    def _send(self, records: Sequence[tuple[str, Record]]) -> None:
        recorder = self._open()
        taken = dict(recorder.next_offsets)
        deliveries: list[Delivery] = []
        for topic, (key, value) in records:
            partition = 0 if is_reorg_topic(topic) else partition_of(key, self.partitions)
            source = source_of(topic, partition)
            offset = taken.get(source, 0)
            taken[source] = offset + 1
            deliveries.append(Delivery(topic, partition, offset, key, value))
        recorder.record(deliveries)


class FileReceiver:
    """A `Receiver` over a replay. It does not know the offsets at which partitions end."""

    def __init__(self, deliveries: Generator[Delivery, None, None]) -> None:
        self.ends: Mapping[str, int] = {}
        self._deliveries = deliveries

    async def receive_some(self) -> Sequence[Delivery]:
        """The next deliveries; an empty list at the end. Raises `RecordingError` for a damaged file."""
        return await to_thread.run_sync(lambda: list(islice(self._deliveries, RECEIVE_MAX)))

    def close(self) -> None:
        self._deliveries.close()


def _scan(path: Path, next_offsets: dict[str, int]) -> int:
    """Reads the file. Returns where the last whole record ends, and notes the next offset of each partition. Raises
    `RecordingError` for damage."""
    reader = RecordingReader()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            for delivery in reader.feed(data):
                _note(delivery, next_offsets)
    return reader.offset


def _note(delivery: Delivery, next_offsets: dict[str, int]) -> None:
    source = delivery.source
    next_offsets[source] = max(delivery.offset + 1, next_offsets.get(source, 0))
