"""Returning: a primary that starts asks its mirrors whether one of them has taken its place, before it takes pushes.
Without that, an old primary that comes back would confirm pushes until the new one reaches it
(`stream_node.fleet.mirror.fencer`). The mirrors are known from their requests, and are asked at the same time. After
PATIENCE_S without an answer, the primary goes on alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.asking import RemoteNode, asking, change_role
from stream_node.fleet.mirror.errors import MirrorError, SourceLost, SourceRefused
from stream_node.fleet.mirror.local_stream import LocalStream
from stream_service.mirror_codec import MirrorAnswer, decode_mirror_page
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import MIRROR, AskingMirror, BeMirror, MirrorPull, SourceRole
from stream_service.names import stream_address
from stream_service.role_operations import store_role
from stream_service.workers.role_requests import log_given_up
from stream_storage.errors import StorageError

PATIENCE_S = 3.0

RETRY_S = 0.1

logger = structlog.get_logger(__name__)


class Returning:
    """Asks the mirrors of one primary, after a start of the node. Pushes are refused meanwhile.
    replaced_by: the mirror that has taken the place of the stream, as far as `run` found out. removed: the mirrors that
    are streams of their own now. own_address: where other nodes reach this one, if known."""

    def __init__(
        self, stream: LocalStream, mirrors: Sequence[AskingMirror], new_id: Callable[[], str], own_address: str | None
    ) -> None:
        self._stream = stream
        self._mirrors = mirrors
        self._new_id = new_id
        self._self = AskingMirror(own_address or "", stream.identity[0])
        self.replaced_by: AskingMirror | None = None
        self.removed: list[AskingMirror] = []

    def hold_back(self) -> None:
        """Begins, before the node reads from its connections: no push is stored from now on; everything else is
        served."""
        name, nodes = self._stream.identity[0], ", ".join(sorted({mirror.address for mirror in self._mirrors}))
        self._stream.directory.hold(
            self._stream.identity,
            f"{name!r} has a mirror at {nodes}: this node asks there whether the mirror has taken its place; try "
            "again in some seconds",
        )

    async def run(self, role_changed: Callable[[tuple[str, int], MirrorRow | None], None]) -> None:
        """Ends with the stream as it was, or with the stream as a mirror of its former mirror."""
        # Whatever happens here, the stream must take pushes at the end, or be a mirror.
        try:
            with trio.move_on_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    for mirror in self._mirrors:
                        nursery.start_soon(self._ask, mirror, nursery.cancel_scope)
            row = self._stream.row
            # The new primary may have reached this node meanwhile.
            if self.replaced_by is not None and (row is None or not row.follows):
                to = BeMirror(self.replaced_by.address, self.replaced_by.stream_name)
                done = await self._stream.change(partial(store_role, to=to, force=True, gives_up_fence=True))
                name, partition = self._stream.identity
                primary = self.replaced_by.address
                logger.warning("mirror_has_taken_the_place", stream=name, partition=partition, primary=primary)
                log_given_up(self._stream.identity, done)
                role_changed(self._stream.identity, done.mirror)
        except (MirrorError, StorageError) as error:
            logger.warning("mirror_not_asked", stream=self._stream.identity[0], reason=str(error))
        finally:
            self._stream.directory.hold(self._stream.identity, None)

    async def _ask(self, mirror: AskingMirror, scope: trio.CancelScope) -> None:
        """Asks one mirror until it answers. The first one that has taken the place of the stream ends the asking."""
        while True:
            try:
                await self._ask_once(mirror)
                break
            except SourceLost:
                # Both nodes may be starting.
                await trio.sleep(RETRY_S)
            except (MirrorError, StorageError, ProtocolError) as error:
                logger.warning(
                    "mirror_not_asked", stream=self._stream.identity[0], at=mirror.address, reason=str(error)
                )
                return
        if self.replaced_by is not None:
            scope.cancel()

    async def _ask_once(self, mirror: AskingMirror) -> None:
        """Finds out whether a mirror was promoted in the place of this stream.
        Then its history goes on where this one ends, and it fences a source, or follows the primary that has taken its
        own place."""
        node, partition = self._stream.directory.node, self._stream.identity[1]
        ours = (await self._stream.get_history())[-1].entry_id
        request = MirrorPull(0, self._stream.next_index, 1, 0, ours)
        with asking(node, mirror.address, self._new_id) as remote:
            page: MirrorAnswer = decode_mirror_page(
                await remote.ask_raw(stream_address(mirror.stream_name, partition), MIRROR, request)
            )
            # A successor knows the last entry of this stream and has a newer one.
            known = [entry.entry_id for entry in page.history]
            goes_on = ours in known and known[-1] != ours
            if page.role is SourceRole.PRIMARY:
                self.removed.append(mirror)
            elif goes_on and (page.role is SourceRole.SUCCESSOR or await self._follows_another(remote, mirror)):
                self.replaced_by = self.replaced_by or mirror

    async def _follows_another(self, remote: RemoteNode, mirror: AskingMirror) -> bool:
        """Whether a mirror follows another node than this one. Raises MirrorError.
        A mirror can know more of the history than the stream itself if older files of this node were put back."""
        try:
            there = await change_role(remote, mirror.stream_name, self._stream.identity[1], None, force=False)
        except SourceRefused:
            # Without the right to ask that, this node rather takes no pushes.
            return True
        return AskingMirror(there.source, there.stream_name) != self._self
