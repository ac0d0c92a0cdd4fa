"""Right and Demand: what can be allowed to an identity, and what one message needs. This module decides nothing."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Right(enum.IntFlag):
    """One thing, or several things, that a rule can allow or forbid. Each right has names on which it is given.

    READ, WRITE, CREATE, DELETE, ADMIN: on streams, by the name of the stream.
        READ: pull its messages. WRITE: push messages. CREATE: make the stream. DELETE: delete the stream, or the oldest
        of its messages. ADMIN: set its retention, copy messages into it with chosen indexes and times, and make it a
        mirror of a stream of another node, or a primary again.
    INDEX, SHARE: on consumers, by the client id.
        INDEX: read, save and set the positions of the consumer. SHARE: take leases of partitions as a member of it.
    BLOCK_PUBLISH, BLOCK_READ: on chains of blocks, by the name of the chain.
    OPERATE: see the state of the block node, and start its search for missing blocks; by the name of its chain. See how
        the whole node does, by its status, its metrics and its dashboard; on any name. ADMIN is enough for the status.
    FORWARD: send messages through this node to another one, by the `host:port` of the other node.
    """

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    INDEX = 32
    SHARE = 64
    BLOCK_PUBLISH = 128
    BLOCK_READ = 256
    OPERATE = 512
    FORWARD = 1024


NO_RIGHT = Right(0)
ALL_RIGHTS = Right(2047)
STREAM_RIGHTS = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE | Right.ADMIN
"""The rights on a stream. Who has one of them is allowed to know that the stream exists."""
RIGHT_NAMES: dict[str, Right] = {right.name.lower().replace("_", "-"): right for right in Right if right.name}
"""The rights by the names that rules, logs and answers use, for example `block-read`."""
_TEXTS = {right: name for name, right in RIGHT_NAMES.items()}


def rights_text(rights: int) -> str:
    """Returns the names of rights, for example `read or write`."""
    return " or ".join(_TEXTS[right] for right in Right if right & rights)


class Demand(NamedTuple):
    """What the sender of a message must be allowed.

    rights: one right, or several of which one is enough.
    name: the name on which the sender needs the right; None if the right on any name is enough.
    """

    rights: Right
    name: str | None


NOTHING = Demand(NO_RIGHT, None)
"""The demand of a message that needs no right, for example of the answer to a request that the worker has sent."""
SOMETHING = Demand(ALL_RIGHTS, None)
"""The demand of a message that anybody with at least one right on one name may send. An example is a message that the
worker cannot decode: its answer is an error that tells the sender nothing else."""
