"""Right and Demand: what can be allowed to an identity, and what one message needs. This module decides nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class Right(enum.IntFlag):
    """One thing, or several things, that a rule can allow or forbid. Each right has names on which it is given.

    READ, WRITE, CREATE, DELETE, ADMIN: on streams, by the name of the stream.
        READ: pull its messages. WRITE: push messages. CREATE: make the stream. DELETE: delete the stream, or the oldest
        of its messages. ADMIN: set its retention, copy messages into it with chosen indexes and times, and make it a
        mirror of a stream of another node, or a primary again.
    INDEX, SHARE: on consumers, by the client id.
        INDEX: read, save and set the positions of the consumer. SHARE: take leases of partitions as its member.
    BLOCK_PUBLISH, BLOCK_READ: on chains of blocks, by the name of the chain.
    OPERATE: see the state of the block node, and start its search for missing blocks; by the name of its chain. See how
        the whole node does, by its status, metrics and dashboard; on EVERY_NAME. ADMIN is enough for the status.
    ROUTE: send messages to an operator's own worker or to a forwarding address of this node, by its address.
    REGISTER: get a forwarding address on this node, by that address; `FWD_` for a random one.
    FORWARD: send messages through this node to another one, by the `host:port` of the other node. Make this node
        itself follow or change a stream there, by `host:port/stream` (`to_follow`, `to_replace`)."""

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
    ROUTE = 2048
    REGISTER = 4096


NO_RIGHT = Right(0)
ALL_RIGHTS = Right(8191)
STREAM_RIGHTS = Right.READ | Right.WRITE | Right.CREATE | Right.DELETE | Right.ADMIN
"""The rights on a stream. An identity with one of them may know that the stream exists."""
RIGHT_NAMES: dict[str, Right] = {right.name.lower().replace("_", "-"): right for right in Right if right.name}
"""The rights by the names that rules, logs and answers use, for example `block-read`."""
EVERY_NAME = ""
"""The empty name. Only a rule on all names gives a right on it, because no other prefix begins the empty text."""
_TEXTS = {right: name for name, right in RIGHT_NAMES.items()}


def rights_text(rights: int) -> str:
    return " or ".join(_TEXTS[right] for right in Right if right & rights)


class Demand(NamedTuple):
    """What the sender of a message must be allowed: one of `rights` on `name`, or on any name if `name` is None."""

    rights: Right
    name: str | None


def to_follow(name: str, source: str, source_name: str) -> list[Demand]:
    """Returns the rights to make a stream follow the stream `source_name` of the node `source`."""
    # The node reads there under its own name, so the caller needs the right to read a stream of that name here, and the
    # right to make the node call there. The node also makes partitions, and streams for messages that it sets aside.
    here = [Demand(Right.ADMIN, name), Demand(Right.CREATE, name)]
    return [*here, Demand(Right.FORWARD, f"{source}/{source_name}"), Demand(Right.READ, source_name)]


def to_replace(name: str, sources: Iterable[tuple[str, str]]) -> list[Demand]:
    """Returns the rights to make a stream replace its sources (`host:port`, name), which then mirror it."""
    demands = [Demand(Right.ADMIN, name)]
    for source, source_name in sources:
        demands += [Demand(Right.FORWARD, f"{source}/{source_name}"), Demand(Right.ADMIN, source_name)]
    return demands


NOTHING = Demand(NO_RIGHT, None)
"""The demand of a message that needs no right, for example of the answer to a request that the worker has sent."""
SOMETHING = Demand(ALL_RIGHTS, None)
"""The demand of a message that anybody with at least one right on one name may send."""
