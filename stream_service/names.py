"""Computes the address of a stream, the partition of a key, and generated names. The formulas never change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ockam.actors.address import Address, local

ADDRESS_PREFIX = "ST_S_"
"""The beginning of every stream address, as in the real services."""
ADDRESS_DIGITS = 24
NAME_BYTES_MAX = 1024


def stream_address(name: str, partition: int) -> Address:
    """Returns the address of a stream-partition: ADDRESS_PREFIX and the first 24 hex digits of a SHA-256.

    The hash is computed over the UTF-8 name, a zero byte and the partition in decimal.
    """
    digest = hashlib.sha256(f"{name}\0{partition}".encode()).hexdigest()
    return local(ADDRESS_PREFIX + digest[:ADDRESS_DIGITS])


def partition_of(key: bytes, partitions: int) -> int:
    """Returns the partition of a key in a stream of `partitions` partitions.

    The partition is the first eight bytes of the key's SHA-256, read as a big-endian number, modulo the number of
    partitions. Every process, version and language computes the same partition. If the number of partitions changes,
    many keys get another partition.

    Raises ValueError if `partitions` is less than 1.
    """
    if partitions < 1:
        raise ValueError(f"a stream has at least one partition, not {partitions}")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % partitions


GENERATED_PREFIX = "generated_"
"""The beginning of the name of a stream that was created without one. Eight hex digits follow."""


def refusal_of_name(name: str) -> str | None:
    """Returns the reason why a text is not a valid stream name, or None if the name is valid."""
    if not name:
        return "a stream name is not empty; leave it out to get a generated one"
    size_bytes = len(name.encode())
    if size_bytes > NAME_BYTES_MAX:
        return f"a stream name of {size_bytes} bytes; at most {NAME_BYTES_MAX}"
    if "\0" in name:
        return "a stream name has no zero bytes"
    return None


NEAR_MAX = 3


def near_names(name: str, known: Iterable[str]) -> str:
    """Returns the known names that resemble a misspelled name, as text: "'orders' or 'order'", or ""."""
    # difflib is imported here, because only error messages need it, and its import is slow.
    from difflib import get_close_matches

    by_small = {each.lower(): each for each in known}
    quoted = [repr(by_small[each]) for each in get_close_matches(name.lower(), by_small, NEAR_MAX)]
    return " or ".join(filter(None, (", ".join(quoted[:-1]), *quoted[-1:])))
