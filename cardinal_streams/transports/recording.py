"""The format of recordings: files with deliveries (messages of partitions), in the order of their arrival.

    magic     8 bytes   "CARDREC" 01
    record    size      u32, little endian: bytes of the body
              check     u32, little endian: CRC-32 of the body
              body      a `Delivery` in BARE
    record …

A file that ends within a record is torn: its writer died, and all earlier records are valid. A record with a wrong
check is damage, even if it is the last one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

import bare
from cardinal_streams.errors import RecordingError, TornRecording
from cardinal_streams.transports.transport import Delivery

MAGIC = b"CARDREC\x01"
FRAME = struct.Struct("<II")
# The largest body of a record, in bytes: the largest key and value of a message by default, and room for the topic.
BODY_BYTES_MAX = 12 * 1024 * 1024

_ENCODER = bare.Encoder(Delivery)
_DECODER = bare.Decoder(Delivery)


def encode_deliveries(deliveries: Iterable[Delivery]) -> bytes:
    """Returns the records of these deliveries, without the magic. Raises `RecordingError` for one that is too large."""
    out = bytearray()
    for delivery in deliveries:
        body = _ENCODER.encode(delivery)
        if len(body) > BODY_BYTES_MAX:
            raise RecordingError(f"a delivery has {len(body)} bytes, more than {BODY_BYTES_MAX}", len(out))
        out += FRAME.pack(len(body), zlib.crc32(body))
        out += body
    return bytes(out)


class RecordingReader:
    """Reads the bytes of a recording, piece by piece. Invariant: `offset` is the position in the file at which the next
    record begins. `_pending` has the bytes from there on."""

    def __init__(self) -> None:
        self.offset = 0
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Delivery]:
        """Takes the next bytes of the file, and yields the complete deliveries. Raises `RecordingError` for damage. The
        caller must iterate to the end before the next call."""
        self._pending += data
        if self.offset == 0:
            if len(self._pending) < len(MAGIC):
                return
            if self._pending[: len(MAGIC)] != MAGIC:
                raise RecordingError("the file is no recording", 0)
            self._advance(len(MAGIC))
        at = 0
        try:
            while len(self._pending) - at >= FRAME.size:
                size, check = FRAME.unpack_from(self._pending, at)
                if size > BODY_BYTES_MAX:
                    raise RecordingError(f"a record of {size} bytes, more than {BODY_BYTES_MAX}", self.offset + at)
                end = at + FRAME.size + size
                if end > len(self._pending):
                    return
                delivery = self._decode(bytes(self._pending[at + FRAME.size : end]), check, self.offset + at)
                at = end
                yield delivery
        finally:
            self._advance(at)

    def end(self) -> None:
        """Notes the end of the file. Raises `TornRecording` if the last record, or the magic, is incomplete."""
        if self._pending or self.offset == 0:
            raise TornRecording(f"the file ends {len(self._pending)} bytes into a record", self.offset)

    def _advance(self, size: int) -> None:
        del self._pending[:size]
        self.offset += size

    def _decode(self, body: bytes, check: int, offset: int) -> Delivery:
        if zlib.crc32(body) != check:
            raise RecordingError("the check of a record is wrong", offset)
        try:
            return _DECODER.decode(body)
        except bare.DecodeError as error:
            raise RecordingError(f"a record is no delivery: {error}", offset) from error
