"""Returning: a primary that starts asks its mirrors whether one of them has taken its place, before it takes pushes.

Without that, an old primary that comes back would confirm pushes until the new one reaches it
(`stream_mirror.fencer`). The mirrors are known from their requests. A mirror that cannot be reached is asked for
PATIENCE_S: then the primary goes on alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress

import structlog
import trio

from ockam.protocol import ProtocolError
from storage.errors import StorageError
from stream_mirror.asking import asking
from stream_mirror.errors import MirrorError, SourceLost
from stream_mirror.local_stream import LocalStream
from stream_service.mirror_codec import MirrorAnswer, decode_mirror_page
from stream_service.mirror_operations import StreamChange
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import MIRROR, BeMirror, MirrorPull, SourceRole
from stream_service.names import stream_address
from stream_service.role_operations import ChangeRole

PATIENCE_S = 3.0
"""The longest time for which a primary that starts waits for the answer of its mirror, in seconds."""

RETRY_S = 0.1
"""The pause before a mirror that cannot be reached is asked again, in seconds."""

logger = structlog.get_logger(__name__)


class Answer(enum.Enum):
    """What came of asking the mirror.

    NONE: it has not answered in time, or refuses to answer.
    GOES_ON: it has not taken the place of the stream.
    REPLACED: it has, and the stream becomes its mirror.
    """

    NONE = enum.auto()
    GOES_ON = enum.auto()
    REPLACED = enum.auto()


class Returning:
    """Asks the mirror of one primary, after a start of the node. Pushes are refused meanwhile.

    row: the mirror: `source` is its node, and `source_name` its name there.
    """

    def __init__(self, stream: LocalStream, row: MirrorRow, new_id: Callable[[], str]) -> None:
        self._stream = stream
        self._row = row
        self._new_id = new_id

    def hold_back(self) -> None:
        """Begins: no push is stored from now on. Called before the node reads from its connections. Everything else is
        served, also the same question of another node that starts."""
        name = self._stream.identity[0]
        self._stream.get_worker().bounds.refuse_pushes(
            f"{name!r} has a mirror at {self._row.source}: this node asks there whether the mirror has taken its "
            "place; push again in some seconds"
        )

    async def run(self, role_changed: Callable[[tuple[str, int], MirrorRow | None], None]) -> Answer:
        """Ends with the stream as it was, or with the stream as a mirror of its former mirror."""
        # Whatever happens here, the stream must take pushes at the end, or be a mirror.
        answer = Answer.NONE
        try:
            with trio.move_on_after(PATIENCE_S):
                answer = await self._ask_until_answered()
            if answer is Answer.REPLACED:
                done = await self._stream.change(self._make)
                name, partition = self._stream.identity
                logger.warning("mirror_has_taken_the_place", stream=name, partition=partition, primary=self._row.source)
                role_changed(self._stream.identity, done.mirror)
        except (MirrorError, StorageError, ProtocolError) as error:
            logger.warning("mirror_not_asked", stream=self._stream.identity[0], reason=str(error))
        finally:
            with suppress(MirrorError):
                bounds = self._stream.get_worker().bounds
                bounds.set_mirror(bounds.mirror, self._stream.identity[0])
        return answer

    async def _ask_until_answered(self) -> Answer:
        while True:
            try:
                return Answer.REPLACED if await self._is_replaced() else Answer.GOES_ON
            except SourceLost:
                # Both nodes may be starting.
                await trio.sleep(RETRY_S)

    async def _is_replaced(self) -> bool:
        """Whether the mirror was promoted in the place of this stream: it has a source to fence, and its history goes
        on where this one ends."""
        node, partition = self._stream.directory.node, self._stream.identity[1]
        ours = (await self._stream.get_history())[-1].entry_id
        request = MirrorPull(0, self._stream.next_index, 1, 0, ours)
        with asking(node, self._row.source, self._new_id) as asker:
            page: MirrorAnswer = decode_mirror_page(
                await asker.ask_raw(stream_address(self._row.source_name, partition), MIRROR, request)
            )
        known = [entry.entry_id for entry in page.history]
        return page.role is SourceRole.SUCCESSOR and ours in known and known[-1] != ours

    def _make(self, stream_id: int, done: Callable[[StreamChange], None]) -> ChangeRole:
        return ChangeRole(stream_id, BeMirror(self._row.source, self._row.source_name), True, done)
