"""Followers: stores the addresses of the mirrors of this node's streams, and asks them after a start.
A primary asks before it takes pushes. Otherwise an old primary that comes back would confirm pushes until the new
primary reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog
import trio

from ockam.actors.message import Origin
from ockam.identity.rules.rights import to_follow
from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.asking import MirrorError, RemoteNode, SourceLost, SourceRefused, asking, change_role
from stream_node.fleet.mirror.mirror import Identity, LocalStream
from stream_service.mirror_operations import store_role
from stream_service.mirror_rows import FOLLOWERS_MAX, FollowerRow, MirrorRow, drop_follower, note_follower
from stream_service.mirroring import (
    MIRROR,
    AskingMirror,
    BeMirror,
    MirrorAnswer,
    MirrorPull,
    SourceRole,
    decode_mirror_page,
    refusal_of_source,
)
from stream_service.names import refusal_of_name, stream_address
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.stream import log_given_up
from stream_storage.contract import Session
from stream_storage.errors import StorageError
from stream_storage.runner import do

REFRESH_S = 3600
"""The row of a mirror, with the time at which it last asked, is written at most once in this time."""

logger = structlog.get_logger(__name__)


class Followers:
    """The mirrors of the streams of a node: at most FOLLOWERS_MAX for each partition.
    role_changed: called with a stream that became a mirror, or still has to fence its former source."""

    def __init__(
        self,
        directory: StreamDirectory,
        role_changed: Callable[[Identity, MirrorRow | None], None],
        own_address: Callable[[], str | None],
    ) -> None:
        self._directory = directory
        self._role_changed = role_changed
        self._own_address = own_address
        # For each stream of this node, when each of its mirrors last asked, in microseconds since 1970.
        self._heard_us: dict[Identity, dict[AskingMirror, int]] = {}

    def add(self, identity: Identity, row: FollowerRow) -> None:
        self._heard_us.setdefault(identity, {})[AskingMirror(row.address, row.stream_name)] = row.heard_us

    def forget(self, identity: Identity) -> None:
        """Forgets the mirrors of a stream that was deleted."""
        self._heard_us.pop(identity, None)

    def begin_asking(self, identity: Identity, fences: MirrorRow | None, nursery: trio.Nursery) -> None:
        """Makes a partition refuse pushes until its mirrors were asked whether one of them has taken its place.
        fences: its row in the table of mirrors if it has to fence its former source. The former source is asked, too:
        it can have taken the place of this stream in turn."""
        # Everybody who may be the primary now is asked.
        stream = LocalStream(self._directory, identity)
        mirrors = list(self._heard_us.get(identity, ()))
        if fences is not None and AskingMirror(fences.source, fences.source_name) not in mirrors:
            mirrors.append(AskingMirror(fences.source, fences.source_name))
        # An earlier version stored every address that a mirror sent.
        nowhere = [mirror for mirror in mirrors if refusal_of_source(mirror.address) is not None]
        if nowhere:
            nursery.start_soon(self._drop, identity, nowhere)
        mirrors = [mirror for mirror in mirrors if mirror not in nowhere]
        # The stream holds pushes back from now on: a push confirmed here would be lost if another node is the primary.
        if mirrors:
            returning = Returning(stream, mirrors, self._own_address())
            nursery.start_soon(self._ask, identity, fences, returning)
        elif fences is not None:
            self._role_changed(identity, fences)

    def note(self, nursery: trio.Nursery, identity: Identity, origin: Origin, mirror: AskingMirror) -> None:
        """Stores the address of a mirror that asks a stream of this node for messages."""
        try:
            stream_id = LocalStream(self._directory, identity).bounds.stream_id
        except MirrorError:
            # A stream that a part of the node writes cannot become a mirror, so its mirrors are not asked.
            return
        known, now_us = self._heard_us.setdefault(identity, {}), self._directory.clock.wall_us()
        recent_us = now_us - REFRESH_S * 1_000_000
        # A mirror asks all the time; its row is written at most once in REFRESH_S.
        if known.get(mirror, recent_us) > recent_us:
            return
        if mirror not in known and len(known) >= FOLLOWERS_MAX and min(known.values()) > recent_us:
            # All stored mirrors have asked lately. With one more, each request would replace another row.
            return
        gate = self._directory.node.gate
        if refusal_of_name(mirror.stream_name) or refusal_of_source(mirror.address):
            return
        # After a start, the node asks this mirror, which may have become the primary. So the sender needs the rights to
        # make the stream a mirror of it.
        needed = to_follow(identity[0], mirror.address, mirror.stream_name)
        if gate is not None and not all(gate.holds(origin, rights, str(name)) for rights, name in needed):
            return
        known[mirror] = now_us
        row = FollowerRow(stream_id, mirror.address, mirror.stream_name, now_us)
        nursery.start_soon(self._write, identity, row)

    async def _ask(self, identity: Identity, fences: MirrorRow | None, returning: Returning) -> None:
        try:
            await returning.run(self._role_changed)
        except Exception as error:
            # A mistake of this program. The stream takes pushes again, and the node goes on.
            logger.error("mirror_task_failed", task=f"asking {identity}", exc_info=error)
        if returning.removed and returning.replaced_by is None:
            await self._drop(identity, returning.removed)
        # The role may have changed meanwhile, and then its task has begun already.
        with suppress(MirrorError):
            row = LocalStream(self._directory, identity).bounds.mirror
            if fences is not None and row == fences:
                self._role_changed(identity, fences)

    async def _drop(self, identity: Identity, mirrors: Sequence[AskingMirror]) -> None:
        def drop(session: Session) -> None:
            for mirror in mirrors:
                drop_follower(session, stream_id, mirror.address, mirror.stream_name)

        try:
            stream_id = LocalStream(self._directory, identity).bounds.stream_id
            await do(self._directory.storage.submit_write, drop)
        except (MirrorError, StorageError) as error:
            logger.warning("mirror_not_forgotten", stream=identity[0], reason=str(error))
            return
        for mirror in mirrors:
            self._heard_us.get(identity, {}).pop(mirror, None)

    async def _write(self, identity: Identity, row: FollowerRow) -> None:
        def write(session: Session) -> list[FollowerRow]:
            # A stream that was deleted meanwhile gets no row.
            session.log.get_stream(row.stream_id)
            return note_follower(session, row)

        try:
            rows = await do(self._directory.storage.submit_write, write)
        except StorageError as error:
            self._heard_us.get(identity, {}).pop(AskingMirror(row.address, row.stream_name), None)
            logger.warning("mirror_not_written_down", stream=identity[0], reason=str(error))
            return
        written = {AskingMirror(each.address, each.stream_name) for each in rows}
        # Mirrors that have asked after this one are being stored by tasks of their own.
        known = self._heard_us.get(identity, {})
        for mirror, heard_us in list(known.items()):
            if mirror not in written and heard_us < row.heard_us:
                del known[mirror]


PATIENCE_S = 3.0

RETRY_S = 0.1


class Returning:
    """Asks the mirrors of one primary at the same time, after a start of the node. Pushes are refused from the creation
    of this object to the end of `run`. After PATIENCE_S without an answer, the primary goes on alone.
    replaced_by: the mirror that has taken the place of the stream, as far as `run` found out. removed: the mirrors that
    are streams of their own now. own_address: where other nodes reach this one, if known."""

    def __init__(self, stream: LocalStream, mirrors: Sequence[AskingMirror], own_address: str | None) -> None:
        self._stream = stream
        self._mirrors = mirrors
        self._self = AskingMirror(own_address or "", stream.identity[0])
        self.replaced_by: AskingMirror | None = None
        self.removed: list[AskingMirror] = []
        # Before the node reads from its connections: no push is stored from now on; everything else is served.
        name, nodes = stream.identity[0], ", ".join(sorted({mirror.address for mirror in mirrors}))
        stream.directory.hold(
            stream.identity,
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
            row = self._stream.bounds.mirror
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
        Such a mirror has the history of this stream with later entries, and fences its source or follows another node.
        """
        partition = self._stream.identity[1]
        ours = (await self._stream.get_history())[-1].entry_id
        request = MirrorPull(0, self._stream.bounds.next_index, 1, 0, ours)
        with asking(self._stream.directory, mirror.address) as remote:
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
            # This node may not ask the mirror, so it takes no pushes, to be safe.
            return True
        return AskingMirror(there.source, there.stream_name) != self._self
