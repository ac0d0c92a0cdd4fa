"""StreamServices: the shared parts of a node, as the workers of streams see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ockam.actors.message import Message, Origin
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import AskingMirror
from stream_service.workers.clock import Clock
from stream_service.workers.tail_machine import Tails
from stream_service.workers.truncation_turns import TruncationTurns
from stream_storage.contract import Session
from stream_storage.runner import Runner

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing


class StreamServices(Protocol):
    """The parts of a node that all its streams share. `workers.directory.StreamDirectory` implements it, and explains
    the other attributes.

    now_us: returns the trusted time of `clock`, in microseconds since 1970.
    tracing: makes the spans of pushes; None: the node does not trace.
    has_rules: whether the node decides by rules who may do what.
    """

    @property
    def storage(self) -> Runner: ...

    @property
    def limits(self) -> StreamLimits: ...

    def now_us(self) -> int: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def counters(self) -> StreamCounters: ...

    @property
    def tails(self) -> Tails: ...

    @property
    def truncation_turns(self) -> TruncationTurns: ...

    @property
    def role_changed(self) -> Callable[[tuple[str, int], MirrorRow | None], None] | None: ...

    @property
    def mirror_seen(self) -> Callable[[tuple[str, int], Origin, AskingMirror], None]: ...

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
