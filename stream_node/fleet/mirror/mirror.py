"""Mirror: one stream-partition of this node that follows a source or fences its former one, with its statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import structlog
import trio

from stream_node.fleet.mirror.asking import RemoteNode, asking, change_role
from stream_node.fleet.mirror.errors import MirrorError
from stream_node.fleet.mirror.local_stream import LocalStream
from stream_node.fleet.mirror.protocol import PRIMARIES, MirrorCondition, MirrorState
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import BeMirror, BePrimary, RoleResponse
from stream_service.role_machine import UNDER_PROMOTION, StreamRole

logger = structlog.get_logger(__name__)

Identity = tuple[str, int]


class Mirror:
    """What the tasks of one mirror share. condition, reason: see `stream_node.fleet.mirror.protocol.MirrorState`.

    row: as it was when the present task began, with the source, which stays the same until the next task.
    source_next_index: the end of the source, when the mirror last got it. heard_us: when it had asked for this, in
    microseconds since 1970; 0 if the source never answered. The source has not ended earlier since then.
    promotion_reason: why a promotion that is under way does not go on; empty if it does.
    """

    def __init__(
        self, stream: LocalStream, row: MirrorRow, new_id: Callable[[], str], now_us: Callable[[], int]
    ) -> None:
        self.stream = stream
        self.row = row
        self.new_id = new_id
        self.condition = MirrorCondition.STARTING
        self.reason = ""
        self.source_next_index = row.source_next_index
        self.heard_us = row.heard_us
        self.promotion_reason = ""
        self.now_us = now_us
        self._level_s = trio.current_time()

    def has_role(self, roles: Collection[StreamRole]) -> bool:
        """Whether the stream has one of these roles now. A stream that is being made again or deleted has none."""
        try:
            row = self.stream.row
        except MirrorError:
            return False
        return row is not None and row.role in roles

    def asking(self) -> AbstractContextManager[RemoteNode]:
        return asking(self.stream.directory.node, self.row.source, self.new_id)

    async def change_source(
        self, remote: RemoteNode, change: BeMirror | BePrimary | None = None, *, force: bool = False
    ) -> RoleResponse:
        """Asks the source to change its role; None: to report it. Raises MirrorError."""
        return await change_role(remote, self.row.source_name, self.stream.identity[1], change, force=force)

    def note_heard(self, source_next_index: int, asked_us: int) -> None:
        """Notes an answer of the source, with its end.
        asked_us: when the request was sent, in microseconds since 1970. Everything confirmed before that is known."""
        self.source_next_index, self.heard_us = source_next_index, asked_us

    def note_stored(self) -> None:
        if self.stream.next_index >= self.source_next_index:
            self._level_s = trio.current_time()

    def report(self, condition: MirrorCondition, reason: str = "") -> None:
        if condition is not self.condition:
            name, partition = self.stream.identity
            log = logger.info if condition is MirrorCondition.FOLLOWING else logger.warning
            log("mirror", stream=name, partition=partition, condition=condition.name.lower(), reason=reason)
        self.condition, self.reason = condition, reason

    def find_state(self) -> MirrorState | None:
        """Returns the present state; None for a stream that is being made again or deleted, and so has no row."""
        try:
            row = self.stream.row
        except MirrorError:
            return None
        return None if row is None else self.state(row)

    def state(self, row: MirrorRow) -> MirrorState:
        """Returns the present state. row: the stream's row in the table of mirrors. Raises MirrorError."""
        (name, partition), next_index = self.stream.identity, self.stream.next_index
        lag = max(0, self.source_next_index - next_index)
        # A mirror whose source is silent may lack the pushes since then.
        is_level = not lag and self.condition in (MirrorCondition.FOLLOWING, MirrorCondition.CIRCLE)
        lag_s = 0.0 if is_level or self.condition in PRIMARIES else trio.current_time() - self._level_s
        # The role of the row is stronger than the condition that its task has seen.
        is_promoted = row.role in UNDER_PROMOTION
        return MirrorState(
            name,
            partition,
            MirrorCondition.PROMOTING if is_promoted else self.condition,
            self.promotion_reason if is_promoted else self.reason,
            source=row.source,
            source_name=row.source_name,
            next_index=next_index,
            source_next_index=self.source_next_index,
            lag=lag,
            lag_us=round(lag_s * 1e6),
            heard_us=self.heard_us,
            aside_name=row.aside_name,
            aside_messages=row.aside_messages,
        )
