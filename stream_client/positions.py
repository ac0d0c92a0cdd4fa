"""Saves the positions of consumers, in the node's index service (`SavedIndexes`) or in another object (`Positions`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from index_service.extensions import (
    LOAD_POSITIONS,
    MARKED_SAVE,
    SaveResponse,
    SaveStatus,
)
from index_service.protocol import INDEX_PARTITIONED, GetPartitionIndex
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import AccessDenied, NodeFailed, RequestRefused
from stream_client.position_saves import (
    KnownPosition,
    OnReset,
    PositionSaves,
    check_answer,
    check_keeps_positions,
    check_name,
    knows_no_marks,
)
from stream_client.session import ClientSession, Connected

SAVES_MAX = 5
"""A save without a mark is sent at most this many times. It has no answer, and can be lost with a connection."""


class Positions(Protocol):
    """The interface of an object that saves a consumer's positions: for each partition, the next index to read.
    `SavedIndexes` saves them on the node. A program can write its own class, for example for its database."""

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Returns the saved index of each of these partitions, in order; 0 for a partition without a saved index."""
        ...

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Saves the index of each partition in `indexes`. When this method returns, the indexes are safely stored."""
        ...

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Begins to save the index of each partition in `indexes`, without waiting. A save can be lost."""
        ...


class SavedIndexes(PositionSaves):
    """The positions that a node's index service saves under one client id: the next index to read of each partition.

    The service keeps the highest index saved so far. It confirms the saves of positions that were loaded with `resume`.
    These saves have a mark: they name the incarnation of the stream. It does not confirm other saves: `save` reads
    their indexes back, and saves again if a save was lost together with a connection.
    """

    _session: ClientSession

    def __init__(self, client: Connected, client_id: str) -> None:
        """client: a StreamClient. client_id: the name under which the node saves the positions."""
        super().__init__(client.session, client_id)

    async def get(self, stream_name: str, partition: int = 0) -> int:
        """Returns the saved index of one partition; 0 if no index was saved. Raises what `load` raises."""
        return (await self.load(stream_name, (partition,)))[0]

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Returns the saved index of each of these partitions, in order; 0 for a partition without a saved index.
        Raises ClientError if a request fails, and ProtocolError if an answer belongs to another request."""
        requests = [GetPartitionIndex(self.client_id, stream_name, partition) for partition in partitions]
        answers = await self._session.ask_all(INDEX_SERVICE, INDEX_PARTITIONED, requests)
        for request, answer in zip(requests, answers, strict=True):
            check_answer(request, answer)
        return [answer.index or 0 for answer in answers]

    async def resume(self, stream_name: str, partitions: Sequence[int], on_reset: OnReset) -> Sequence[KnownPosition]:
        """Returns the positions of these partitions with their marks, in order. Creates missing positions. A consumer
        calls this before it reads. With an older node, the positions have no marks.

        on_reset: called with a partition whose position somebody else changes later.
        """
        try:
            requests = self._load_requests(stream_name, partitions)
            answers = await self._session.ask_all(INDEX_SERVICE, LOAD_POSITIONS, requests)
        except AccessDenied:
            raise
        except RequestRefused:
            return [KnownPosition(index) for index in await self.load(stream_name, partitions)]
        return self._loaded(stream_name, partitions, answers, on_reset)

    async def begin(self, stream_name: str, partition: int, created_us: int, fence: int | None = None) -> SaveResponse:
        """Saves index 0 as the position in another incarnation of the stream, created at `created_us` (microseconds
        since 1970), unless the position is already one of that incarnation. The answer has the index that is saved.
        `fence` is the number of the consumer's lease; None without a lease."""
        request = self.request(stream_name, partition, 0, fence)
        if request is None:
            return SaveResponse(0, SaveStatus.OK, 0)
        # The mark stays that of the former stream until the answer comes: after an error, this is repeated.
        request = msgspec.structs.replace(request, created_us=created_us)
        answer = await self._session.ask(INDEX_SERVICE, MARKED_SAVE, request)
        self.answered(request, answer)
        return answer

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Saves the index of each partition in `indexes`. When this method returns, the node has stored these or higher
        indexes. A position that somebody else has changed stays as it is. Raises InvalidArgument for an index that no
        node can save, and NodeFailed if the node does not store it, for example because its disk is full."""
        marked, missing = self._split(stream_name, indexes)
        try:
            answers = await self._session.ask_all(INDEX_SERVICE, MARKED_SAVE, marked)
            for request, answer in zip(marked, answers, strict=True):
                self.answered(request, answer)
        except RequestRefused as error:
            if not knows_no_marks(error):
                raise
            missing |= self._without_marks(marked)
        # A save without a mark has no answer. Only reading it back shows whether it was lost.
        for _ in range(SAVES_MAX):
            if not missing:
                return
            self._tell(stream_name, missing)
            kept = dict(zip(missing, await self.load(stream_name, list(missing)), strict=True))
            missing = {partition: index for partition, index in missing.items() if kept[partition] < index}
        if missing:
            raise NodeFailed(f"{self._session.address} does not store the position of {self.client_id!r}; read its log")


async def resume(
    positions: Positions, stream_name: str, partitions: Sequence[int], on_reset: OnReset
) -> Sequence[KnownPosition]:
    """Returns the positions of these partitions with their marks, in order. An object without `resume` has none."""
    if hasattr(positions, "resume"):
        marks: Sequence[KnownPosition] = await positions.resume(stream_name, partitions, on_reset)
        return marks
    return [KnownPosition(index) for index in await positions.load(stream_name, partitions)]


def to_positions(client: Connected, positions: Positions | str) -> Positions:
    """Returns the object that saves a consumer's positions: a new `SavedIndexes` if `positions` is the consumer's name,
    otherwise `positions` itself. Raises InvalidArgument."""
    if isinstance(positions, str):
        return SavedIndexes(client, check_name(positions))
    return check_keeps_positions(positions)
