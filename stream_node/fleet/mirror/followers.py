"""Followers: stores the addresses of the mirrors of this node's streams. After a start, a primary asks its mirrors
before it takes pushes. Otherwise an old primary would confirm pushes until the new primary reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import structlog
import trio

from ockam.actors.message import Origin
from ockam.identity.rules.rights import to_follow
from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.mirror import Identity, LocalStream, MirrorError, SourceLost, SourceRefused, asking
from stream_service.mirror_operations import store_role
from stream_service.mirror_rows import FOLLOWERS_MAX, FollowerRow, MirrorRow, drop_follower, note_follower
from stream_service.mirroring import (
    MIRROR,
    ROLE,
    AskingMirror,
    BeMirror,
    MirrorAnswer,
    MirrorPull,
    RoleRequest,
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
PATIENCE_S = 3.0
"""After this time without an answer of its mirrors, a primary goes on alone."""
RETRY_S = 0.1

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
        fences: the partition's row in the table of mirrors if it has to fence a former source, which is asked, too: the
        source can have taken the place of this stream in turn."""
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
        if not mirrors:
            if fences is not None:
                self._role_changed(identity, fences)
            return
        # The node reads nothing from its connections yet. From now on this stream stores no push: the push would be
        # lost if another node is the primary. All other requests are served.
        nodes = ", ".join(sorted({mirror.address for mirror in mirrors}))
        self._directory.hold(
            identity,
            f"{identity[0]!r} has a mirror at {nodes}: this node asks there whether the mirror has taken its place; "
            "try again in some seconds",
        )
        nursery.start_soon(self._ask, stream, fences, mirrors)

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

    async def _ask(self, stream: LocalStream, fences: MirrorRow | None, mirrors: Sequence[AskingMirror]) -> None:
        """Asks the mirrors of a primary at the same time, after a start of the node. Pushes are refused meanwhile,
        for at most PATIENCE_S seconds. Then the stream is as before, or has become a mirror of its former mirror."""
        identity, (name, partition) = stream.identity, stream.identity
        # The mirrors that are streams of their own now, and those that have taken the place of the stream.
        removed: list[AskingMirror] = []
        successors: list[AskingMirror] = []

        async def ask(mirror: AskingMirror, scope: trio.CancelScope) -> None:
            while True:
                try:
                    role = await self._find_role(stream, mirror)
                    break
                except SourceLost:
                    # Both nodes may be starting.
                    await trio.sleep(RETRY_S)
                except (MirrorError, StorageError, ProtocolError) as error:
                    logger.warning("mirror_not_asked", stream=name, at=mirror.address, reason=str(error))
                    return
            if role is SourceRole.PRIMARY:
                removed.append(mirror)
            elif role is SourceRole.SUCCESSOR:
                successors.append(mirror)
                scope.cancel()

        # Whatever happens here, the stream must take pushes at the end, or be a mirror.
        try:
            with trio.move_on_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    for mirror in mirrors:
                        nursery.start_soon(ask, mirror, nursery.cancel_scope)
            row = stream.bounds.mirror
            # The new primary may have reached this node meanwhile.
            if successors and (row is None or not row.follows):
                primary = successors[0].address
                to = BeMirror(primary, successors[0].stream_name)
                done = await stream.change(partial(store_role, to=to, force=True, gives_up_fence=True))
                logger.warning("mirror_has_taken_the_place", stream=name, partition=partition, primary=primary)
                log_given_up(identity, done)
                self._role_changed(identity, done.mirror)
        except (MirrorError, StorageError) as error:
            logger.warning("mirror_not_asked", stream=name, reason=str(error))
        except Exception as error:
            # This is a mistake of this program. The stream takes pushes again, and the node goes on.
            logger.error("mirror_task_failed", task=f"asking {identity}", exc_info=error)
        finally:
            self._directory.hold(identity, None)
        if removed and not successors:
            await self._drop(identity, removed)
        # The role may have changed meanwhile, and then its task has begun already.
        with suppress(MirrorError):
            if fences is not None and stream.bounds.mirror == fences:
                self._role_changed(identity, fences)

    async def _find_role(self, stream: LocalStream, mirror: AskingMirror) -> SourceRole:
        """Returns PRIMARY if a mirror is a stream of its own now, SUCCESSOR if it has taken the place of this stream,
        else MIRROR. A successor has the history of this stream with later entries, and does not follow this node."""
        name, partition = stream.identity
        address = stream_address(mirror.stream_name, partition)
        ours = (await stream.get_history())[-1].entry_id
        request = MirrorPull(0, stream.bounds.next_index, 1, 0, ours)
        with asking(self._directory, mirror.address) as remote:
            page: MirrorAnswer = decode_mirror_page(await remote.ask_raw(address, MIRROR, request))
            # A successor knows the last entry of this stream and has a newer one.
            known = [entry.entry_id for entry in page.history]
            goes_on = ours in known and known[-1] != ours
            if page.role is SourceRole.PRIMARY or (goes_on and page.role is SourceRole.SUCCESSOR):
                return page.role
            if not goes_on:
                return SourceRole.MIRROR
            # A mirror can know more of the history than the stream itself if older files of this node were put back. It
            # is no successor as long as it follows this node.
            try:
                there = await remote.ask(address, ROLE, RoleRequest(0, None, False))
            except SourceRefused:
                # This node may not ask the mirror, so it takes no pushes, to be safe.
                return SourceRole.SUCCESSOR
            follows_this = (there.source, there.stream_name) == (self._own_address() or "", name)
            return SourceRole.MIRROR if follows_this else SourceRole.SUCCESSOR

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
