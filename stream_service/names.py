"""Names: the address of a stream, the partition of a key, and generated names of streams.

All three are documented and stable: a client may compute them, and they are the same after every restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from ockam.address import Address, local

ADDRESS_PREFIX = "ST_S_"
"""The prefix that the real services use."""
ADDRESS_DIGITS = 24
NAME_BYTES_MAX = 1024


def stream_address(name: str, partition: int) -> Address:
    """The address of a stream's worker: the prefix and 24 hex digits of a SHA-256 over name and partition.

    The hash runs over the UTF-8 name, a zero byte and the partition in decimal.
    """
    digest = hashlib.sha256(f"{name}\0{partition}".encode()).hexdigest()
    return local(ADDRESS_PREFIX + digest[:ADDRESS_DIGITS])


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions` (at least 1).

    The first eight bytes of the key's SHA-256, big-endian, modulo the number of partitions. It is the same in every
    process, version and language; adding partitions later moves keys.
    """
    if partitions < 1:
        raise ValueError(f"a stream has at least one partition, not {partitions}")
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % partitions


def generated_name(new_id: Callable[[], str]) -> str:
    """A name for a stream whose creator gave none: `generated_` and 8 hex digits, as the real services do."""
    return f"generated_{new_id()[:8]}"


def refusal_of_name(name: str) -> str | None:
    """The reason why this cannot be a stream's name, or None where it can."""
    if not name:
        return "a stream name is not empty; leave it out to get a generated one"
    size_bytes = len(name.encode())
    if size_bytes > NAME_BYTES_MAX:
        return f"a stream name of {size_bytes} bytes; at most {NAME_BYTES_MAX}"
    if "\0" in name:
        return "a stream name has no zero bytes"
    return None


NEAR_MAX = 3
"""An error suggests at most this many names."""


def near_names(name: str, known: Iterable[str]) -> str:
    """The known names most like a wrong one, for people: "'orders' or 'order'"; empty where none is like it."""
    # Loaded here, since only errors need it.
    from difflib import get_close_matches

    by_small = {each.lower(): each for each in known}
    quoted = [repr(by_small[each]) for each in get_close_matches(name.lower(), by_small, NEAR_MAX)]
    return " or ".join(filter(None, (", ".join(quoted[:-1]), *quoted[-1:])))
