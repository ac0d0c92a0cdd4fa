"""The checksum of a stored message. It detects damaged and swapped rows, and does not protect against an attacker.

    seed     = (stream_id * 2654435761 + time_us) mod 4294967291 + idx        then mod 2**32
    prefix   = nothing, or if the message has a key or headers: u32 length, key, u32 length, headers
    checksum = CRC-32 (zlib) of prefix and data, begun with the seed

Lengths are little-endian. The length 2**32 - 1 stands for None.

The seed ties a message to its stream, index and time: one wrong bit in any of them changes the seed, and two CRC-32 of
the same bytes differ if their seeds differ. The modulus is the largest prime below 2**32: a wrong bit changes
a time by a power of two, which is no multiple of that prime."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from operator import add
from zlib import crc32

_MULTIPLIER = 2654435761
_MODULUS = 4294967291
_NONE_LENGTH = b"\xff\xff\xff\xff"


def seed_base(stream_id: int, time_us: int) -> int:
    """Returns the checksum seed of the message with index 0. The seed of index i is larger by i."""
    return (stream_id * _MULTIPLIER + time_us) % _MODULUS


def checksum_plain(base: int, index: int, data: bytes) -> int:
    """Returns the checksum of a message without key and headers. base: the result of `seed_base`."""
    return crc32(data, base + index)


def checksums_plain(base: int, first_index: int, data: Iterable[bytes]) -> list[int]:
    """Returns the checksums of messages with consecutive indexes and one time, without keys and headers."""
    return list(map(crc32, data, count(base + first_index)))


def checksums_plain_timed(stream_id: int, first_index: int, times_us: list[int], data: Iterable[bytes]) -> list[int]:
    """Returns the checksums of messages with consecutive indexes, each with its own time, without keys and headers."""
    # Many messages share their time, so the base of each time is computed once.
    bases = {time_us: seed_base(stream_id, time_us) for time_us in set(times_us)}
    return list(map(crc32, data, map(add, map(bases.__getitem__, times_us), count(first_index))))


def checksum_full(base: int, index: int, data: bytes, key: bytes | None, headers: bytes | None) -> int:
    seed = base + index
    if key is not None or headers is not None:
        seed = crc32(prefixed(headers), crc32(prefixed(key), seed))
    return crc32(data, seed)


def prefixed(part: bytes | None) -> bytes:
    """Returns a value behind its length, or the length that stands for None."""
    if part is None:
        return _NONE_LENGTH
    return len(part).to_bytes(4, "little") + part
