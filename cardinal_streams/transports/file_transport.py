"""A transport over one file: sent messages are appended, and can be replayed any number of times, up to its present
end. Reading and writing run in worker threads, under trio or asyncio.

    magic     8 bytes   "CARDREC" 01
    record    size      u32, little endian: bytes of the body
              check     u32, little endian: CRC-32 of the body
              body      a `Delivery` in BARE
    record …

A file that ends within a record is torn: its writer died, and all earlier records are valid. A record with a wrong
check is damage, even if it is the last one."""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec
from anyio import Lock, to_thread

import bare
from cardinal_streams.errors import RecordingError, TornRecording
from cardinal_streams.message.messages import Record
from cardinal_streams.transports.transport import Delivery, is_reorg_topic, partition_of, source_of, split_source
from ockam.files.durable_files import CANNOT_BE_LOCKED, sync_names

MAGIC = b"CARDREC\x01"
FRAME = struct.Struct("<II")
# The largest body of a record, in bytes: the largest key and value of a message by default, and room for the topic.
BODY_BYTES_MAX = 12 * 1024 * 1024

_ENCODER = bare.Encoder(Delivery)
_DECODER = bare.Decoder(Delivery)


def encode_deliveries(deliveries: Iterable[Delivery]) -> bytes:
    """Returns the records of these deliveries, without the magic. Raises `RecordingError` for a delivery that is too
    large."""
    out = bytearray()
    for delivery in deliveries:
        body = _ENCODER.encode(delivery)
        if len(body) > BODY_BYTES_MAX:
            raise RecordingError(f"a delivery has {len(body)} bytes, more than {BODY_BYTES_MAX}", len(out))
        out += FRAME.pack(len(body), zlib.crc32(body))
        out += body
    return bytes(out)


READ_BYTES = 256 * 1024
# The largest number of deliveries that one call to a worker thread returns.
RECEIVE_MAX = 1_024


def read_deliveries(file: BinaryIO) -> Iterator[Delivery]:
    """Yields the deliveries of a recording. Raises `RecordingError` for damage, and at the end `TornRecording` if the
    last record, or the magic, is incomplete."""
    offset, piece = 0, file.read(len(MAGIC))
    if len(piece) == len(MAGIC):
        if piece != MAGIC:
            raise RecordingError("the file is no recording", 0)
        offset, piece = len(MAGIC), file.read(FRAME.size)
    while len(piece) == FRAME.size and offset:
        size, check = FRAME.unpack(piece)
        if size > BODY_BYTES_MAX:
            raise RecordingError(f"a record of {size} bytes, more than {BODY_BYTES_MAX}", offset)
        body = file.read(size)
        if len(body) < size:
            piece += body
            break
        if zlib.crc32(body) != check:
            raise RecordingError("the check of a record is wrong", offset)
        try:
            delivery = _DECODER.decode(body)
        except bare.DecodeError as error:
            raise RecordingError(f"a record is no delivery: {error}", offset) from error
        yield delivery
        offset, piece = offset + FRAME.size + size, file.read(FRAME.size)
    if piece or not offset:
        raise TornRecording(f"the file ends {len(piece)} bytes into a record", offset)


class RecorderStatistics(msgspec.Struct, frozen=True):
    """The statistics of a `Recorder`: the deliveries that it appended, and the bytes that it cut off a torn file, whose
    last record was incomplete."""

    recorded: int
    cut_bytes: int


class Recorder:
    """Appends deliveries to a recording, and creates the file if it does not exist. Use it in a `with` block.

    A torn file is cut after its last complete record. Raises `RecordingError` for a damaged file, which is not changed,
    and for a file that another recorder has open. An error of the file system closes the recorder; the record that was
    written last can then be incomplete."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.next_offsets: dict[str, int] = {}
        self._recorded = 0
        is_new = not self.path.exists()
        file = open(self.path, "x+b" if is_new else "r+b")  # noqa: SIM115
        self._file: BinaryIO | None = file
        try:
            # Two recorders would write their records over each other's.
            _lock(file)
            end = 0 if is_new else _scan(self.path, self.next_offsets)
            self._cut = file.seek(0, os.SEEK_END) - end
            file.truncate(end)
            file.seek(end)
            if end == 0:
                self._write(MAGIC)
            # The folder is synced even if the file existed: the process that created the file may have been killed
            # before it synced the folder.
            sync_names(self.path)
        except BaseException:
            self.close()
            raise

    def record(self, deliveries: Iterable[Delivery]) -> None:
        """Appends deliveries. They are on disk when `record` returns."""
        deliveries = list(deliveries)
        self._write(encode_deliveries(deliveries))
        self._recorded += len(deliveries)
        for delivery in deliveries:
            _note(delivery, self.next_offsets)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def statistics(self) -> RecorderStatistics:
        return RecorderStatistics(self._recorded, self._cut)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            raise RecordingError("the recorder is closed", 0)
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            # `close` tries to write the rest once more. If it cannot, the first error is the one that is raised.
            with suppress(OSError):
                self.close()
            raise


def replay(
    path: str | os.PathLike[str],
    topics: Collection[str] | None = None,
    position: Mapping[str, int] | None = None,
    *,
    torn_ok: bool = False,
) -> Generator[Delivery, None, None]:
    """Yields the deliveries of a recording, either of the given topics or of all topics.

    `position`: by source (`topic:partition`), the offset at which a partition begins; by default at its first delivery.

    Raises `RecordingError` for damage, and `TornRecording` at the end of a file whose last record is incomplete, unless
    `torn_ok` is True."""
    first = position or {}
    try:
        with Path(path).open("rb", READ_BYTES) as file:
            for delivery in read_deliveries(file):
                wanted = topics is None or delivery.topic in topics
                if wanted and delivery.offset >= first.get(delivery.source, 0):
                    yield delivery
    except TornRecording:
        if not torn_ok:
            raise


class FileTransport:
    """A `Transport` over one file. Each topic has `partitions` partitions, but the channel of a reorg has one."""

    def __init__(self, path: str | os.PathLike[str], partitions: int = 1) -> None:
        if partitions < 1:
            raise ValueError(f"{partitions} partitions")
        self.path = Path(path)
        self.partitions = partitions
        self._recorder: Recorder | None = None
        self._lock = Lock()

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Appends the records of all topics durably to the file. Raises `RecordingError` for a damaged file."""
        await self.send_in_order([(topic, record) for topic, records in outgoing.items() for record in records])

    async def send_in_order(self, records: Sequence[tuple[str, Record]]) -> None:
        """Appends records of several topics durably to the file. A replay has the same order of records."""
        async with self._lock:
            await to_thread.run_sync(self._send, records)

    async def created(self, topics: Collection[str]) -> dict[str, int]:
        return {}

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        """Returns, by source (`topic:partition`), the offset after the last record of each partition that has records.
        Creates the file if it does not exist."""
        async with self._lock:
            offsets = await to_thread.run_sync(self._next_offsets)
        return {source: end for source, end in offsets.items() if split_source(source)[0] in topics}

    @asynccontextmanager
    async def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = True
    ) -> AsyncIterator[FileReceiver]:
        """Replays these topics up to the present end of the file. `stop_at_end` has no effect."""
        receiver = FileReceiver(replay(self.path, topics, position, torn_ok=True))
        try:
            yield receiver
        finally:
            receiver.close()

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def _next_offsets(self) -> dict[str, int]:
        if self._recorder is not None:
            return self._recorder.next_offsets
        # A transport that only reads does not keep the file locked, so that others can write it.
        if not self.path.exists():
            Recorder(self.path).close()
        offsets: dict[str, int] = {}
        _scan(self.path, offsets)
        return offsets

    def _send(self, records: Sequence[tuple[str, Record]]) -> None:
        if self._recorder is None:
            self._recorder = Recorder(self.path)
        recorder = self._recorder
        taken = dict(recorder.next_offsets)
        deliveries: list[Delivery] = []
        for topic, (key, value) in records:
            partition = 0 if is_reorg_topic(topic) else partition_of(key, self.partitions)
            source = source_of(topic, partition)
            offset = taken.get(source, 0)
            taken[source] = offset + 1
            deliveries.append(Delivery(topic, partition, offset, key, value))
        try:
            recorder.record(deliveries)
        except OSError:
            # The next call opens the file anew, and cuts off an incomplete record.
            self._recorder = None
            raise


class FileReceiver:
    """A `Receiver` over a replay of a file. It does not know where partitions end, nor when they were created."""

    def __init__(self, deliveries: Generator[Delivery, None, None]) -> None:
        self.ends: Mapping[str, int] = {}
        self.created: Mapping[str, int] = {}
        self._deliveries = deliveries

    async def receive_some(self) -> Sequence[Delivery]:
        """Returns the next deliveries, or an empty list at the end of the file. Raises `RecordingError`."""
        return await to_thread.run_sync(lambda: list(islice(self._deliveries, RECEIVE_MAX)))

    def close(self) -> None:
        self._deliveries.close()


def _scan(path: Path, next_offsets: dict[str, int]) -> int:
    """Stores the next offset of each partition in `next_offsets`. Returns where the last complete record ends."""
    with path.open("rb", READ_BYTES) as file:
        try:
            for delivery in read_deliveries(file):
                _note(delivery, next_offsets)
        except TornRecording as torn:
            return torn.offset
        return file.tell()


def _lock(file: BinaryIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordingError("another program writes to the recording", 0) from None
    except OSError as error:
        if error.errno not in CANNOT_BE_LOCKED:
            raise


def _note(delivery: Delivery, next_offsets: dict[str, int]) -> None:
    source = delivery.source
    next_offsets[source] = max(delivery.offset + 1, next_offsets.get(source, 0))
