"""StreamServices: the interface through which the workers of streams use the shared parts of their node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ockam.actors.message import Message, Origin
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import Follower
from stream_service.workers.clock import Clock
from stream_service.workers.tail_machine import Tails
from stream_storage.contract import Session
from stream_storage.runner import Runner

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing


class StreamServices(Protocol):
    """The interface to the parts of a node that all its streams share. `workers.directory.StreamDirectory` implements
    it.

    now_us: returns the trusted time of `clock`, in microseconds since 1970.
    tails: the newest messages of all streams, in memory.
    has_rules: whether the node decides by rules who may do what.
    tracing: makes the spans of pushes; None: the node does not trace.
    role_changed: called when a stream became a mirror or a primary, with its name and partition, and its row in the
    table of mirrors; and when it was deleted, without a row. None: the streams of this node cannot become mirrors.
    mirror_seen: called when a mirror asks a stream for messages, with the name and partition of the stream.
    pass_on: passes the pushes to a mirror on to its source, and returns all other messages; None: it refuses pushes.
    holds: the streams that store nothing at present, each with the reason, by name and partition.
    forget_positions: deletes the positions of all consumers in a partition, in the transaction that deletes the
    partition. Its arguments are the session, the name and the partition.
    """

    @property
    def storage(self) -> Runner: ...

    @property
    def limits(self) -> StreamLimits: ...

    @property
    def now_us(self) -> Callable[[], int]: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def counters(self) -> StreamCounters: ...

    @property
    def tails(self) -> Tails: ...

    @property
    def role_changed(self) -> Callable[[tuple[str, int], MirrorRow | None], None] | None: ...

    @property
    def mirror_seen(self) -> Callable[[tuple[str, int], Origin, Follower], None]: ...

    @property
    def pass_on(self) -> Callable[[tuple[str, int], Sequence[Message]], Sequence[Message]] | None: ...

    def may_follow(self, origin: Origin, name: str) -> bool: ...

    @property
    def holds(self) -> Mapping[tuple[str, int], str]: ...

    @property
    def has_rules(self) -> bool: ...

    @property
    def forget_positions(self) -> Callable[[Session, str, int], None]: ...

    @property
    def tracing(self) -> Tracing | None: ...
