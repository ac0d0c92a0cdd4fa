"""StreamCopier: copies new partitions, retention, and positions and fences of consumers from a source.
`stream_node.fleet.mirror.message_copier` copies the messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import structlog
import trio

from index_service.extensions import MARKED_POSITIONS, POSITIONS, MarkedPosition, PositionKey, PositionsRequest
from index_service.fences import FENCES, FencesRequest, StoredFence, copy_positions
from index_service.worker import SERVICE_ADDRESSES as INDEX_ADDRESSES
from ockam.actors.address import Address, local
from stream_node.fleet.mirror.mirror import MirrorError, RemoteNode, SourceRefused, asking
from stream_service.extensions import LIST, ListRequest, StreamInfo, StreamKey
from stream_service.mirror_rows import MirrorRow, find_mirror
from stream_service.names import stream_address
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.service import SERVICE_ADDRESSES
from stream_service.workers.stream import StreamWorker
from stream_storage.contract import Session
from stream_storage.errors import StorageClosed, StorageError
from stream_storage.runner import completed, do

INTERVAL_S = 2.0
"""The interval between two rounds: a position that was saved on the source is on the mirror after about this time."""
PAGE = 1_000

logger = structlog.get_logger(__name__)


class StreamCopier:
    """Copies the partitions, retention, positions and fences of one stream that is a mirror on this node."""

    def __init__(
        self,
        directory: StreamDirectory,
        name: str,
        row: MirrorRow,
        follow: Callable[[int], Awaitable[None]],  # makes a partition of the stream a mirror
        # Whether a partition has the messages of its source, as far as known here. With a connection: whether the
        # source has shown it by an answer through this connection.
        agrees: Callable[[int, Address | None], bool],
    ) -> None:
        self._directory = directory
        self._name = name
        self._row = row
        self._follow = follow
        self._agrees = agrees
        self.reason = ""

    def is_of(self, row: MirrorRow) -> bool:
        return (row.source, row.source_name) == (self._row.source, self._row.source_name)

    async def run(self) -> None:
        while True:
            try:
                await self.copy_once()
                self._note("")
            except StorageClosed:
                # The node is stopping.
                return
            except (MirrorError, StorageError) as error:
                # The copiers of messages report a source that is lost.
                self._note(str(error))
            await trio.sleep(INTERVAL_S)

    async def copy_once(self) -> None:
        """Copies everything once. Raises MirrorError, StorageError."""
        with asking(self._directory, self._row.source) as remote:
            infos = await list_partitions(remote, self._row.source_name)
            for info in infos:
                partition, retention = info.partition, info.retention
                worker = self._find_worker(partition)
                if worker is None:
                    await self._follow(partition)
                elif (
                    worker.bounds.is_mirror
                    and worker.admin.retention != retention
                    and self._has_same(partition, remote.connection)
                ):
                    # The mirror obeys this retention when it becomes a primary.
                    await completed(partial(worker.admin.set_retention, retention))
            # A source that was started anew may have other messages, which no copier of messages has compared yet.
            await self.copy_positions(remote, infos, of_connection=True)

    async def copy_positions(
        self, remote: RemoteNode, infos: Sequence[StreamInfo] | None = None, *, of_connection: bool = False
    ) -> None:
        """Copies the positions and the fences of all consumers of the stream. Raises MirrorError, StorageError.
        infos: the partitions of the source, if they are known. of_connection: whether only those partitions count
        whose messages were compared through the connection that the answers come through."""
        if infos is None:
            infos = await list_partitions(remote, self._row.source_name)
        positions: list[MarkedPosition] = []
        fences: list[StoredFence] = []
        index_service = local(INDEX_ADDRESSES[0])
        after: PositionKey | None = None
        # The positions come first, page by page.
        while True:
            request = PositionsRequest(0, self._row.source_name, None, after, PAGE)
            page, more = await self._list_positions(remote, request)
            positions += page
            if not more or not page:
                break
            last = page[-1]
            after = PositionKey(last.client_id, last.stream_name, last.partition)
        after = None
        # The fences come second: a consumer that was fenced at the source stays fenced after a promotion.
        while True:
            found = await remote.ask(index_service, FENCES, FencesRequest(0, self._row.source_name, after, PAGE))
            fences += found.fences
            after = found.following
            if after is None:
                break
        if positions or fences:
            # This is checked after the answers, because the source may have got other messages before them. A position
            # belongs to the stream only if it was saved under the same creation time.
            through = remote.connection if of_connection else None
            created = {info.partition: info.created_us for info in infos if self._has_same(info.partition, through)}
            # Both are stored in one transaction, so no consumer has a position without its fence.
            work = partial(
                copy_positions,
                stream_name=self._name,
                positions=positions,
                fences=fences,
                created=created,
                follows=is_mirror,
            )
            await do(self._directory.storage.submit_write, work)

    async def _list_positions(self, remote: RemoteNode, request: PositionsRequest) -> tuple[list[MarkedPosition], bool]:
        index_service = local(INDEX_ADDRESSES[0])
        try:
            page = await remote.ask(index_service, MARKED_POSITIONS, request)
            return page.positions, page.more
        except SourceRefused as error:
            # Any other refusal can pass. Positions that were stored without their generation would keep a wrong one.
            if f"{MARKED_POSITIONS.name} is not served" not in str(error):
                raise
            # An older source does not say to which incarnation of the stream its positions belong.
            plain = await remote.ask(index_service, POSITIONS, request)
            positions = [
                MarkedPosition(**msgspec.structs.asdict(each), created_us=0, generation=0) for each in plain.positions
            ]
            return positions, plain.more

    def _has_same(self, partition: int, connection: Address | None) -> bool:
        """Returns whether a partition has the messages of its source (`agrees`). Otherwise the positions of the source
        could make consumers skip messages that only the mirror has, and its retention could delete such messages."""
        worker = self._find_worker(partition)
        # After a crash, a worker does not know its stream yet.
        if worker is None or not worker.bounds.stream_id:
            return False
        # A mirror that has no message yet takes everything from its source.
        return not worker.bounds.next_index or self._agrees(partition, connection)

    def _find_worker(self, partition: int) -> StreamWorker | None:
        worker = self._directory.node.find_worker(stream_address(self._name, partition))
        return worker if isinstance(worker, StreamWorker) else None

    def _note(self, reason: str) -> None:
        if reason and reason != self.reason:
            logger.warning("mirror_positions_not_copied", stream=self._name, reason=reason)
        self.reason = reason


def is_mirror(session: Session, stream_id: int) -> bool:
    """Returns whether a stream follows its source. Call it inside a transaction. Raises DatabaseCorrupt."""
    row = find_mirror(session, stream_id)
    return row is not None and row.follows


async def list_partitions(remote: RemoteNode, name: str) -> list[StreamInfo]:
    """Returns the descriptions of all partitions of a stream of the other node. Raises MirrorError."""
    found: list[StreamInfo] = []
    after: StreamKey | None = None
    while True:
        page = await remote.ask(local(SERVICE_ADDRESSES[0]), LIST, ListRequest(0, name, after, PAGE))
        # A prefix also finds longer names, which are sorted behind.
        found += [info for info in page.streams if info.stream_name == name]
        if not page.more or page.streams[-1].stream_name != name:
            return found
        after = StreamKey(page.streams[-1].stream_name, page.streams[-1].partition)
