"""MessageCopier: copies one stream-partition from its source, without end.
`stream_node.fleet.mirror.tasks` runs the copiers.

A page of the source is stored together with the history of the source in one transaction, so a mirror that is killed at
any moment goes on where its last transaction ended. While a page is being stored, the next one is asked for. After each
connect, the mirror compares its last message with that of the source. The comparison finds a source that has lost
messages and got others since, even if its history does not show it.
"""

from __future__ import annotations

import math
from functools import partial

import structlog
import trio

from index_service.storage import lower_positions, move_positions
from ockam.protocol import ProtocolError
from stream_node.fleet.mirror.mirror import (
    LocalStream,
    Mirror,
    MirrorError,
    Parted,
    RemoteNode,
    SourceLost,
    SourceRefused,
)
from stream_node.fleet.mirror.protocol import MirrorCondition
from stream_service.extensions import INFO, InfoRequest
from stream_service.mirror_operations import (
    AnyChange,
    begin_aside,
    copy_aside,
    cut_tail,
    find_record,
    store_mirrored,
    take_history,
)
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import (
    MIRROR,
    MIRROR_BYTES_MAX,
    AskingMirror,
    MirrorAnswer,
    MirrorPull,
    MirrorStatus,
    SourceRole,
    decode_mirror_page,
)
from stream_service.names import NAME_BYTES_MAX, stream_address
from stream_service.stored import StoredStream
from stream_storage.contract import Session
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.history import History, find_parting
from stream_storage.stream_rows import change_stream

WAIT_S = 1.0
"""How long the source may delay an answer while it has no new message: the interval of answers to an idle mirror."""
RETRY_S = 0.5
PARTED_RETRY_S = 5.0
"""The pause of a mirror that has parted from its source. The source may be replaced meanwhile."""
CIRCLE_S = 3.0
"""If the source is itself a mirror, the mirror asks it at this interval whether it follows this node."""
TRUNCATE_LOOK_S = 0.05
FAILURES: tuple[tuple[type[Exception], MirrorCondition, float], ...] = (
    (SourceLost, MirrorCondition.UNREACHABLE, RETRY_S),
    (Parted, MirrorCondition.PARTED, PARTED_RETRY_S),
    (Exception, MirrorCondition.FAILED, RETRY_S),
)
"""The condition of a mirror after each failure, and the pause before it tries again; the first that fits counts."""
ASIDE, ID_DIGITS = ".aside-", 12
"""The name of the stream that gets the messages which the source does not have ends with ASIDE and so many digits of an
id."""
CIRCLE_TEXT = "this stream and its source follow each other, so neither takes pushes; promote one of both"

logger = structlog.get_logger(__name__)


class MessageCopier:
    """Copies one stream-partition. own_address: where the source reaches this node; None if it is not known."""

    def __init__(self, mirror: Mirror, own_address: str | None) -> None:
        self._mirror = mirror
        self._stream, self._row = mirror.stream, mirror.row
        self._self = None if own_address is None else AskingMirror(own_address, mirror.stream.identity[0])
        self._circle = MirrorCondition.FOLLOWING
        self._circle_look_s = 0.0

    async def run(self) -> None:
        """Follows the source until it is cancelled. Failures become the mirror's condition, and it tries again."""
        while True:
            try:
                with self._mirror.asking() as remote:
                    await self._follow(remote)
            except StorageClosed:
                # The node is stopping.
                return
            except (MirrorError, StorageError, ProtocolError) as error:
                condition, retry_s = next(each[1:] for each in FAILURES if isinstance(error, each[0]))
                self._mirror.report(condition, str(error))
                await trio.sleep(retry_s)

    async def _follow(self, remote: RemoteNode) -> None:
        """Copies pages until something fails."""
        self._circle, self._circle_look_s = MirrorCondition.FOLLOWING, trio.current_time() + CIRCLE_S
        # Messages are compared before the first page: copying on top of other messages would mix two streams.
        await self._compare_last(remote)
        page: MirrorAnswer | None = None
        while True:
            if page is None:
                await self._take_created(remote)
            # Stores the page at hand, and fetches the next one meanwhile.
            page = await self._next_page(remote, page)
            # A primary that has fewer messages than its mirror has lost some, even if its history agrees.
            has_less = page.next_index < self._stream.bounds.next_index and not page.is_mirror
            if page.status is MirrorStatus.PARTED or has_less:
                await self._part(page)
                page = None
                continue
            # Two streams that follow each other stand still without a failure, so this is looked for.
            await self._look_for_circle(remote, page)
            self._mirror.connection = remote.connection
            self._mirror.report(self._circle, CIRCLE_TEXT if self._circle is MirrorCondition.CIRCLE else "")
            # The source has deleted messages that were not copied yet.
            if page.start > self._stream.bounds.next_index or page.first_index > self._stream.bounds.next_index:
                await self._skip(page.first_index)
                page = None

    async def _look_for_circle(self, remote: RemoteNode, page: MirrorAnswer) -> None:
        """Finds out whether the source follows this stream. In such a circle neither takes pushes."""
        if page.role is not SourceRole.MIRROR:
            self._circle = MirrorCondition.FOLLOWING
            return
        if self._self is None or trio.current_time() < self._circle_look_s:
            return
        self._circle_look_s = trio.current_time() + CIRCLE_S
        try:
            there = await self._mirror.change_source(remote)
        except SourceRefused:
            # A mirror can follow without the right to ask for the role. It asks again after its next connect.
            self._circle_look_s = math.inf
            return
        is_circle = (there.source, there.stream_name) == (self._self.address, self._self.stream_name)
        self._circle = MirrorCondition.CIRCLE if is_circle else MirrorCondition.FOLLOWING

    async def _next_page(self, remote: RemoteNode, page: MirrorAnswer | None) -> MirrorAnswer:
        """Fetches and returns the next page, and stores `page` at the same time. page: None for the first call."""
        # The request assumes that the page at hand will be stored.
        start = self._stream.bounds.next_index + (0 if page is None else len(page.records))
        entry_id = await self._entry_id(page)
        failures: list[Exception] = []

        async def store(stored_page: MirrorAnswer) -> None:
            try:
                await self._store_page(stored_page)
            except (MirrorError, StorageError) as error:
                # A failed store comes first: the page behind it must not be stored.
                failures.insert(0, error)

        async with trio.open_nursery() as nursery:
            if page is not None:
                nursery.start_soon(store, page)
            try:
                answer = await self._ask(remote, start, entry_id)
            except (MirrorError, ProtocolError) as error:
                # The page that is being stored is good, so its storing goes on.
                failures.append(error)
        if failures:
            raise failures[0]
        return answer

    async def _ask(
        self, remote: RemoteNode, start: int, entry_id: int, wait_s: float = WAIT_S, size_bytes: int = MIRROR_BYTES_MAX
    ) -> MirrorAnswer:
        source = stream_address(self._row.source_name, self._stream.identity[1])
        asked_us = self._stream.directory.clock.wall_us()
        request = MirrorPull(0, start, size_bytes, round(wait_s * 1000), entry_id, self._self)
        page = decode_mirror_page(await remote.ask_raw(source, MIRROR, request, wait_s))
        # The mirror knows of everything that the source had confirmed when it was asked.
        self._mirror.source_next_index, self._mirror.heard_us = page.next_index, asked_us
        return page

    async def _entry_id(self, page: MirrorAnswer | None) -> int:
        """Returns the id of the newest entry in the history of the mirror after this page; 0 without messages."""
        bounds = self._stream.bounds
        if page is not None and page.records:
            end = bounds.next_index + len(page.records)
            known = [entry.entry_id for entry in page.history if entry.first_index <= end]
            return known[-1] if known else 0
        if bounds.first_index == bounds.next_index:
            return 0
        return (await self._stream.get_history())[-1].entry_id

    async def _store_page(self, page: MirrorAnswer) -> None:
        worker = self._stream.get_worker()
        bounds = worker.bounds
        # Entries of the history beyond the page belong to messages that are not copied yet.
        end = bounds.next_index + len(page.records)
        history = tuple(entry for entry in page.history if entry.first_index <= end)
        # A mirror without messages takes the history, too: by it, a promoted mirror recognizes its former source.
        if page.records or (history and history != bounds.history):
            work = partial(
                store_mirrored,
                records=page.records,
                before_us=worker.last_time_us,
                source_history=page.history,
                source_next_index=page.next_index,
                heard_us=self._mirror.heard_us,
            )
            await self._stream.change(work)
        self._mirror.note_stored()
        if page.first_index > self._stream.bounds.first_index:
            # The source has deleted its first messages. So does the mirror, in steps and beside the copying.
            worker.admin.follow(min(page.first_index, self._stream.bounds.next_index))

    async def _compare_last(self, remote: RemoteNode) -> None:
        """Compares the mirror's last message with the message at that index of the source. Raises Parted."""
        bounds = self._stream.bounds
        index = bounds.next_index - 1
        if bounds.first_index > index:
            return
        # A source that has lost messages and got others since has another message at this index.
        record = await self._stream.read(partial(find_record, stream_id=bounds.stream_id, index=index))
        page = await self._ask(remote, index, (await self._stream.get_history())[-1].entry_id, 0.0, 1)
        if page.status is MirrorStatus.PARTED:
            await self._part(page)
        elif page.records and page.start == index and page.records[0] != record:
            await self._part(page, differs_at=index)

    async def _take_created(self, remote: RemoteNode) -> None:
        """Gives a mirror without messages the creation time of its source, by which readers tell incarnations apart.
        A reader that goes on at the mirror after a promotion then reads the same stream. A mirror with messages keeps
        its own time, which readers may know. It can differ if an earlier version of this program made the mirror."""
        name, partition = self._stream.identity
        if self._stream.bounds.next_index:
            return
        source = stream_address(self._row.source_name, partition)
        created_us = (await remote.ask(source, INFO, InfoRequest(0))).info.created_us
        before_us = self._stream.bounds.created_us
        if created_us != before_us:

            def take(session: Session, change: AnyChange) -> None:
                # The positions of its consumers belong to the new creation time, too.
                change_stream(session.execute, change.stream_id, created_us=created_us)
                move_positions(session, name, partition, before_us, created_us)

            await self._stream.change(take)

    async def _part(self, page: MirrorAnswer, differs_at: int | None = None) -> None:
        """Finds the messages that the source does not have. If there are any, sets them aside or raises Parted.
        differs_at: an index where mirror and source have different messages although their histories agree."""
        history = await self._stream.get_history()
        bounds = self._stream.bounds
        # A source that is a mirror itself may be behind. A primary that is behind has lost messages.
        end = page.next_index if not page.is_mirror else bounds.next_index
        # The first index where both can have different messages.
        parting = find_parting(history, page.history)
        parting = end if parting is None else min(parting, end)
        if differs_at is not None and parting > differs_at:
            # The histories do not say since when the messages differ, so all of them are in doubt.
            parting = bounds.first_index
        if bounds.next_index <= parting:
            # Nothing was stored under the entries that the source does not have.
            await self._stream.change(partial(take_history, source_history=page.history))
            return
        row = bounds.mirror
        if row is not None and bounds.first_index == bounds.next_index:
            # There is no message that could be lost.
            await cut(self._stream, parting, page.history)
            return
        # Messages that only this mirror has are never deleted: they are set aside if the operator allowed it.
        first = max(parting, bounds.first_index)
        what = f"the {bounds.next_index - first} messages from index {first} on are not those of the source"
        if row is None or not row.sets_aside:
            raise Parted(f"{what}; `mirror add --force` keeps them aside and follows")
        await set_aside(self._stream, row, parting, page.history)

    async def _skip(self, index: int) -> None:
        """Deletes the mirror's messages and continues at this index: the source has deleted the messages before it."""
        stream = self._stream
        while stream.bounds.first_index < stream.bounds.next_index:
            stream.get_worker().admin.follow(stream.bounds.next_index)
            await trio.sleep(TRUNCATE_LOOK_S)
        if index > stream.bounds.next_index:
            # The mirror has no messages now.
            await stream.change(lambda session, change: session.log.skip_to(change.stream_id, index))


async def set_aside(stream: LocalStream, row: MirrorRow, index: int, source_history: History) -> None:
    """Moves the messages from `index` on, which the source does not have, to another stream at the same indexes. Copies
    first and cuts then, both in steps of one transaction each. After a kill in between, the next start goes on: the
    other stream shows how far the copying has come. Raises StorageError, MirrorError.
    source_history: the history of the source, whose entries stay."""
    directory, (name, partition) = stream.directory, stream.identity
    stream_id = stream.get_worker().bounds.stream_id
    to = "" if row.aside_messages else row.aside_name
    while True:
        # 1. Store the name of the other stream. A node that was killed in the next steps goes on with the same stream.
        if not to:
            ending = ASIDE + directory.new_id()[:ID_DIGITS]
            to = name.encode()[: NAME_BYTES_MAX - len(ending)].decode(errors="ignore") + ending
            await stream.change(partial(begin_aside, name=to))
        # 2. Copy, until the other stream has everything.
        step = partial(copy_aside, stream_id=stream_id, index=index, partition=partition, created_us=directory.now_us())
        copied = await stream.write(partial(step, name=to))
        if copied.done:
            break
        if not copied.fits:
            # The source parts at another index than before the kill. The old copies stay in their stream.
            logger.warning("messages_set_aside_anew", stream=name, partition=partition, from_index=index, besides=to)
            directory.reopen_stream(StoredStream(copied.record, 0, None))
            to = ""
    count = copied.record.next_index - copied.record.first_index
    # 3. Cut. Only the last step of the cut stores that all messages are moved.
    await cut(stream, index, source_history, count)
    # 4. Serve the other stream. A worker that runs already has not seen the copies.
    directory.reopen_stream(StoredStream(copied.record, 0, None))
    logger.warning("messages_set_aside", stream=name, partition=partition, messages=count, from_index=index, kept_in=to)


async def cut(stream: LocalStream, index: int, source_history: History, aside_messages: int = 0) -> None:
    """Cuts all messages from `index` on, in steps, and lowers the positions of consumers. Raises StorageError,
    MirrorError. aside_messages: the number that was moved to another stream; stored with the last step."""
    now_us = stream.directory.now_us()

    def step(session: Session, change: AnyChange) -> bool:
        is_last = cut_tail(session, change, index, source_history, aside_messages)
        # The indexes from here on get other messages, which a consumer with a higher position would miss.
        end = session.log.get_stream(change.stream_id).next_index
        lower_positions(session, *stream.identity, end, now_us, renews_all=True)
        return is_last

    while not (await stream.change(step)).result:
        pass
