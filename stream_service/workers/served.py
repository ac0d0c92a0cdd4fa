"""SERVED: every message that a stream serves, with the right that its sender needs and the part of the worker that
serves it. To add a message, add its protocol here."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from ockam.protocol import Protocol, ProtocolError, find_name
from stream_service.appending import APPEND
from stream_service.bulk import BULK
from stream_service.copying import COPY
from stream_service.cutting import CUT_PULL, CutPull
from stream_service.extensions import (
    DELETE,
    DELETE_ALL,
    INFO,
    MARKED_PULL,
    RETENTION,
    RICH_PULL,
    RICH_PUSH,
    TRUNCATE,
    RichPull,
)
from stream_service.mirroring import MIRROR, ROLE
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    CREATE_PARTITIONS,
    PULL,
    PUSH,
    CreatePartitions,
    PartitionCreated,
)
from stream_service.push_batch import PUSH_BATCH
from stream_service.trace import TRACE

if TYPE_CHECKING:
    from ockam.actors.message import Message
    from stream_service.workers.admin import StreamManagement
    from stream_service.workers.bulk import BulkReads
    from stream_service.workers.mirror_pulls import MirrorPulls
    from stream_service.workers.role_requests import RoleRequests


class Readable(typing.Protocol):
    """What the rows below use of every stream, see `workers.readable_stream.ReadableStream`."""

    bulk: BulkReads
    mirror_pulls: MirrorPulls
    admin: StreamManagement

    def pull(self, message: Message) -> None: ...
    def pull_rich(self, message: Message, decode: Callable[[bytes], RichPull | CutPull]) -> None: ...
    def answer_create(self, message: Message) -> None: ...
    def answer_partitioned(self, message: Message, under: Protocol[CreatePartitions, PartitionCreated]) -> None: ...


class Writable(typing.Protocol):
    """What the rows below use of a stream to which clients may write, see `workers.stream.StreamWorker`."""

    roles: RoleRequests

    def gather(self, message: Message) -> bool: ...
    def gather_batch(self, message: Message) -> bool: ...
    def gather_rich(self, message: Message) -> bool: ...
    def note_trace(self, message: Message) -> bool: ...
    def copy(self, message: Message) -> bool: ...


class Read(NamedTuple):
    """A message that every stream serves, also a stream that only a part of the node writes.

    serve: takes the message at once; the answer may come later. Raises ProtocolError if the message is not valid.
    """

    right: Right
    serve: Callable[[Readable, Message], None]


class Write(NamedTuple):
    """A message that only a stream serves to which clients may write.

    serve: returns False if the message must wait until earlier messages are served. Raises ProtocolError if the message
    is not valid.
    stages: whether the message is also served while a large append is being committed, for the next append.
    """

    right: Right
    serve: Callable[[Writable, Message], bool]
    stages: bool = False


SERVED: dict[Protocol[Any, Any], Read | Write] = {
    # All pushes of a run become one append.
    PUSH: Write(Right.WRITE, lambda stream, message: stream.gather(message), stages=True),
    PUSH_BATCH: Write(Right.WRITE, lambda stream, message: stream.gather_batch(message), stages=True),
    RICH_PUSH: Write(Right.WRITE, lambda stream, message: stream.gather_rich(message)),
    TRACE: Write(Right.WRITE, lambda stream, message: stream.note_trace(message), stages=True),
    # Each is a write of its own, which begins when all earlier pushes are stored.
    COPY: Write(Right.ADMIN, lambda stream, message: stream.copy(message)),
    APPEND: Write(Right.WRITE, lambda stream, message: stream.roles.append_expected(message)),
    ROLE: Write(Right.ADMIN, lambda stream, message: stream.roles.change_role(message)),
    # These wait in queues, and see every push that came before them.
    PULL: Read(Right.READ, lambda stream, message: stream.pull(message)),
    RICH_PULL: Read(Right.READ, lambda stream, message: stream.pull_rich(message, RICH_PULL.decode_request)),
    CUT_PULL: Read(Right.READ, lambda stream, message: stream.pull_rich(message, CUT_PULL.decode_request)),
    MARKED_PULL: Read(Right.READ, lambda stream, message: stream.pull_rich(message, MARKED_PULL.decode_request)),
    BULK: Read(Right.READ, lambda stream, message: stream.bulk.receive(message)),
    MIRROR: Read(Right.READ, lambda stream, message: stream.mirror_pulls.receive(message)),
    # Whether the stream exists, and where it begins and ends: one right on the stream is enough, whichever it is.
    CREATE: Read(STREAM_RIGHTS, lambda stream, message: stream.answer_create(message)),
    CREATE_PARTITIONED: Read(
        STREAM_RIGHTS, lambda stream, message: stream.answer_partitioned(message, CREATE_PARTITIONED)
    ),
    CREATE_PARTITIONS: Read(
        STREAM_RIGHTS, lambda stream, message: stream.answer_partitioned(message, CREATE_PARTITIONS)
    ),
    INFO: Read(STREAM_RIGHTS, lambda stream, message: stream.admin.describe(message)),
    RETENTION: Read(Right.ADMIN, lambda stream, message: stream.admin.retain(message)),
    TRUNCATE: Read(Right.DELETE, lambda stream, message: stream.admin.truncate(message)),
    DELETE: Read(Right.DELETE, lambda stream, message: stream.admin.delete(message)),
    DELETE_ALL: Read(Right.DELETE, lambda stream, message: stream.admin.delete_all(message)),
}

_BY_TAG = {protocol.tag: served for protocol, served in SERVED.items()}


def find_served(payload: bytes) -> Read | Write | None:
    """Returns the row of a message; None if streams do not serve its protocol."""
    # A tag is the size of a name and the name. All these names are so short that one byte has their size.
    return _BY_TAG.get(payload[: payload[0] + 1]) if payload else None


def find_right(payload: bytes) -> Right:
    """Returns the right on the stream that the sender of a message needs, whether it is served or refused."""
    served = find_served(payload)
    return STREAM_RIGHTS if served is None else served.right


def not_served(payload: bytes) -> ProtocolError:
    return ProtocolError(f"a stream serves no {find_name(payload)!r}; it serves stream_push and stream_pull")
