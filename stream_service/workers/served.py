"""Every message that a stream serves, with the right that its sender needs and the part of the worker that serves it.
To add a message, add its protocol to `served_messages`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from ockam.actors.message import Message
from ockam.identity.rules.rights import STREAM_RIGHTS, Right
from ockam.protocol import Protocol, ProtocolError, find_name
from stream_service import extensions
from stream_service.appending import APPEND, COPY
from stream_service.bulk import BULK
from stream_service.extensions import CUT_PULL, DELETE, DELETE_ALL, MARKED_PULL, PACKED_PULL, RICH_PULL
from stream_service.mirroring import MIRROR, ROLE
from stream_service.protocol import CREATE, CREATE_PARTITIONED, CREATE_PARTITIONS, PULL, PUSH


class Read(NamedTuple):
    """A message that every stream serves, also a stream that only a part of the node writes.

    serve: takes the message at once; the answer may come later. Raises ProtocolError if the message is not valid.
    """

    right: Right
    serve: Callable[[Any, Message], None]


class Write(NamedTuple):
    """A message that a stream serves only if clients may write to the stream.

    serve: returns False if the message must wait until earlier messages are served. Raises ProtocolError if the message
    is not valid.
    stages: whether the message is also served while a large append is being committed, for the next append.
    """

    right: Right
    serve: Callable[[Any, Message], bool]
    stages: bool = False


@cache
def served_messages() -> dict[Protocol[Any, Any], Read | Write]:
    # The table names methods of the workers, and the workers look their messages up in it, so it is made at first use.
    from stream_service.workers.readable_stream import ReadableStream as Readable
    from stream_service.workers.stream import StreamWorker

    def read(right: Right, serve: Callable[[Readable, Message], None]) -> Read:
        return Read(right, serve)

    def write(right: Right, serve: Callable[[StreamWorker, Message], bool], *, stages: bool = False) -> Write:
        return Write(right, serve, stages)

    return {
        # All pushes of a run become one append.
        PUSH: write(Right.WRITE, StreamWorker.hold_push, stages=True),
        extensions.PUSH_BATCH: write(Right.WRITE, StreamWorker.hold_push, stages=True),
        extensions.RICH_PUSH: write(Right.WRITE, StreamWorker.gather_rich),
        extensions.TRACE: write(Right.WRITE, StreamWorker.note_trace, stages=True),
        # Each is a write of its own, which begins when all earlier pushes are stored.
        COPY: write(Right.ADMIN, StreamWorker.copy),
        APPEND: write(Right.WRITE, StreamWorker.append_expected),
        ROLE: write(Right.ADMIN, StreamWorker.change_role),
        # These wait in queues, and see every push that came before them.
        PULL: read(Right.READ, Readable.pull),
        RICH_PULL: read(Right.READ, lambda stream, message: stream.pull_rich(message, RICH_PULL.decode_request)),
        CUT_PULL: read(Right.READ, lambda stream, message: stream.pull_rich(message, CUT_PULL.decode_request)),
        MARKED_PULL: read(Right.READ, lambda stream, message: stream.pull_rich(message, MARKED_PULL.decode_request)),
        PACKED_PULL: read(Right.READ, lambda stream, message: stream.pull_rich(message, PACKED_PULL.decode_request)),
        BULK: read(Right.READ, lambda stream, message: stream.bulk.receive(message)),
        MIRROR: read(Right.READ, Readable.pull_mirror),
        # These only show whether the stream exists, and its bounds: any right on the stream is enough.
        CREATE: read(STREAM_RIGHTS, Readable.answer_create),
        CREATE_PARTITIONED: read(
            STREAM_RIGHTS, lambda stream, message: stream.answer_partitioned(message, CREATE_PARTITIONED)
        ),
        CREATE_PARTITIONS: read(
            STREAM_RIGHTS, lambda stream, message: stream.answer_partitioned(message, CREATE_PARTITIONS)
        ),
        extensions.INFO: read(STREAM_RIGHTS, lambda stream, message: stream.admin.describe(message)),
        # These change the stream. They are `Read` rows, because every stream serves them.
        extensions.RETENTION: read(Right.ADMIN, lambda stream, message: stream.admin.retain(message)),
        extensions.TRUNCATE: read(Right.DELETE, lambda stream, message: stream.admin.truncate(message)),
        DELETE: read(Right.DELETE, lambda stream, message: stream.admin.delete(message, DELETE)),
        DELETE_ALL: read(Right.DELETE, lambda stream, message: stream.admin.delete(message, DELETE_ALL)),
    }


@cache
def _by_tag() -> dict[bytes, Read | Write]:
    return {protocol.tag: served for protocol, served in served_messages().items()}


def find_served(payload: bytes) -> Read | Write | None:
    """Returns the row of a message; None if streams do not serve its protocol."""
    # A tag is the size of a name, then the name. All names are so short that their size is one byte.
    return _by_tag().get(payload[: payload[0] + 1]) if payload else None


def find_right(payload: bytes) -> Right:
    """Returns the right that the sender of a message needs, also for a message that streams do not serve."""
    served = find_served(payload)
    return STREAM_RIGHTS if served is None else served.right


def not_served(payload: bytes) -> ProtocolError:
    return ProtocolError(f"a stream serves no {find_name(payload)!r}; it serves stream_push and stream_pull")
