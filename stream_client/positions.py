"""Saves the positions of consumers, in the node's index service (`SavedIndexes`) or in another object (`Positions`).

A position belongs to one incarnation of a stream: a stream that was deleted and made again under the same name is
another one, with another creation time. A position also has a generation, which changes when somebody else sets or
deletes the position. A save names both (its mark), so that the node can refuse a save that comes too late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from index_service.extensions import (
    LOAD_PARTITIONS_MAX,
    LOAD_POSITIONS,
    MARKED_SAVE,
    LoadedPosition,
    LoadRequest,
    LoadResponse,
    MarkedResponse,
    MarkedSave,
    SaveResponse,
    SaveStatus,
)
from index_service.limits import INDEX_MAX
from index_service.protocol import INDEX_PARTITIONED, GetPartitionIndex, SavePartitionIndex
from ockam.protocol import ProtocolError
from stream_client.arguments import encoded
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import (
    AccessDenied,
    ClientError,
    InvalidArgument,
    NodeFailed,
    RequestRefused,
    UnexpectedAnswer,
)
from stream_client.session import Connected

P = TypeVar("P")

SAVES_MAX = 5
"""A save without a mark is sent at most this many times. It has no answer, and can be lost with a connection."""


OnReset = Callable[[int], None]
"""The type of a function that is called with a partition whose position somebody else has changed."""


class KnownPosition:
    """The client's knowledge of one saved position.

    index: the next index to read, as it was loaded.
    saved_us: when the position was saved, in microseconds since 1970; 0: unknown.
    created_us: when the stream was created to which the position belongs; 0: unknown.
    generation: the generation of the position; None if it is unknown, because the node is an older one or the program
        saves its positions elsewhere.
    on_reset: called when an answer of the node shows that somebody else has changed the position.
    """

    __slots__ = ("created_us", "generation", "index", "on_reset", "saved_us")

    def __init__(self, index: int, loaded: LoadedPosition | None = None, on_reset: OnReset | None = None) -> None:
        self.index = index
        self.saved_us = 0 if loaded is None else loaded.saved_us
        self.created_us = 0 if loaded is None else loaded.created_us
        self.generation = None if loaded is None else loaded.generation
        self.on_reset = on_reset

    def is_of(self, created_us: int) -> bool:
        """Whether the position belongs to the stream that was created at this time."""
        if self.created_us:
            return self.created_us == created_us
        # If its incarnation is unknown, it belongs to the stream that was there when the position was saved.
        return not 0 < self.saved_us < created_us

    @property
    def may_be_set(self) -> bool:
        """Whether `index` was perhaps set by somebody, or is the 0 of a new position. If false, a consumer saved it."""
        # Whoever sets or makes a position gives it a generation that is not before `saved_us`. A consumer's save keeps
        # the generation. Positions of older versions have the generation 0, and say nothing.
        return not self.generation or self.generation >= self.saved_us


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


class SavedIndexes:
    """The positions that a node's index service saves under one client id: the next index to read of each partition.

    The service keeps the highest index saved so far. It confirms the saves of positions that were loaded with `resume`.
    These saves have a mark: they name the incarnation of the stream. It does not confirm other saves: `save` reads
    their indexes back, and saves again if a save was lost together with a connection.
    """

    def __init__(self, client: Connected, client_id: str) -> None:
        """client: a StreamClient. client_id: the name under which the node saves the positions."""
        self._session = client.session
        self._marks: dict[tuple[str, int], KnownPosition] = {}
        self._cancels: dict[tuple[str, int], Callable[[], None]] = {}
        self._checks: dict[tuple[str, int], Callable[[], None]] = {}
        self.client_id = client_id

    async def get(self, stream_name: str, partition: int = 0) -> int:
        """Returns the saved index of one partition; 0 if no index was saved. Raises what `load` raises."""
        return (await self.load(stream_name, (partition,)))[0]

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Returns the saved index of each of these partitions, in order; 0 for a partition without a saved index.
        Raises ClientError if a request fails, and ProtocolError if an answer belongs to another request."""
        requests = [GetPartitionIndex(self.client_id, stream_name, partition) for partition in partitions]
        answers = await self._session.ask_all(INDEX_SERVICE, INDEX_PARTITIONED, requests)
        for request, answer in zip(requests, answers, strict=True):
            asked = (request.client_id, request.stream_name, request.partition)
            if (answer.client_id, answer.stream_name, answer.partition) != asked:
                what = f"{answer.stream_name!r}, not for {request.stream_name!r}"
                raise ProtocolError(f"the index service answered for {what}")
        return [answer.index or 0 for answer in answers]

    async def resume(self, stream_name: str, partitions: Sequence[int], on_reset: OnReset) -> Sequence[KnownPosition]:
        """Returns the positions of these partitions with their marks, in order. Creates missing positions. A consumer
        calls this before it reads. With an older node, the positions have no marks.

        on_reset: called with a partition whose position somebody else changes later.
        """
        try:
            parts = split_partitions(partitions)
            requests = [LoadRequest(0, self.client_id, stream_name, part, creates=True) for part in parts]
            answers = await self._session.ask_all(INDEX_SERVICE, LOAD_POSITIONS, requests)
        except AccessDenied:
            raise
        except RequestRefused:
            return [KnownPosition(index) for index in await self.load(stream_name, partitions)]
        found = [position for answer in answers for position in answer.positions if position is not None]
        if len(found) != len(partitions):
            raise UnexpectedAnswer(f"{len(found)} positions came for {len(partitions)} partitions")
        marks = [KnownPosition(position.index, position, on_reset) for position in found]
        self._marks.update(zip(((stream_name, partition) for partition in partitions), marks, strict=True))
        return marks

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

    def __repr__(self) -> str:
        return f"<SavedIndexes of {self.client_id!r}>"

    def check_nowait(self, stream_name: str, partitions: Sequence[int]) -> None:
        """Asks, without waiting, whether somebody else has changed these positions. If so, calls the `on_reset` that
        was given to `SavedIndexes.resume`."""

        def checked(asked: Sequence[int], answer: LoadResponse | ClientError) -> None:
            if not isinstance(answer, ClientError):
                for partition, position in zip(asked, answer.positions, strict=False):
                    mark = self._marks.get((stream_name, partition))
                    if mark is None or mark.generation is None or mark.on_reset is None:
                        continue
                    if position is None or position.generation != mark.generation:
                        mark.on_reset(partition)

        marked = [each for each in partitions if (stream_name, each) in self._marks]
        for asked in split_partitions(marked):
            # A later question replaces an unanswered one. Else questions would pile up while the node is away.
            # Another consumer's question about other partitions must stay.
            key = stream_name, asked[0]
            self._checks.pop(key, nothing)()
            request = LoadRequest(0, self.client_id, stream_name, asked, creates=False)
            answered = partial(checked, asked)
            self._checks[key] = self._session.ask_nowait(INDEX_SERVICE, LOAD_POSITIONS, request, answered)

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Sends the index of each partition to the node, without waiting. Without a connection, the save is lost,
        unless the position was loaded with `resume`. Raises InvalidArgument for an index that no node can save."""
        marked, plain = self._split(stream_name, indexes)
        for request in marked:
            # A later save makes an unanswered one useless. So at most one save of each partition waits for an answer.
            key = stream_name, request.partition
            self._cancels.pop(key, nothing)()
            answered = partial(self._saved, request)
            self._cancels[key] = self._session.ask_nowait(INDEX_SERVICE, MARKED_SAVE, request, answered)
        self._tell(stream_name, plain)

    def request(self, stream_name: str, partition: int, index: int, fence: int | None) -> MarkedSave | None:
        """Returns the request that saves an index, with the lease's fence; None if the generation is unknown."""
        mark = self._marks.get((stream_name, partition))
        if mark is None or mark.generation is None:
            return None
        return MarkedSave(
            request_id=0,
            client_id=self.client_id,
            stream_name=stream_name,
            partition=partition,
            index=index,
            fence=fence,
            created_us=mark.created_us,
            generation=mark.generation,
        )

    def answered(self, request: MarkedSave, answer: MarkedResponse) -> None:
        """Applies the answer to a save. If somebody else has changed the position, calls `on_reset`."""
        mark = self._marks.get((request.stream_name, request.partition))
        if mark is None or mark.generation != request.generation:
            # The position was loaded again since the save was sent.
            return
        if answer.status is SaveStatus.OK:
            mark.generation = answer.generation
        elif answer.status is SaveStatus.RESET and mark.on_reset is not None:
            mark.on_reset(request.partition)

    def _saved(self, request: MarkedSave, answer: MarkedResponse | ClientError) -> None:
        if not isinstance(answer, ClientError):
            self.answered(request, answer)
        elif knows_no_marks(answer):
            self._tell(request.stream_name, self._without_marks([request]))

    def _without_marks(self, requests: Sequence[MarkedSave]) -> dict[int, int]:
        """Returns the indexes of saves that an older node has refused. Their positions have no marks from now on."""
        for each in requests:
            mark = self._marks.get((each.stream_name, each.partition))
            if mark is not None:
                mark.generation = None
        return {each.partition: each.index for each in requests}

    def _split(self, stream_name: str, indexes: Mapping[int, int]) -> tuple[list[MarkedSave], dict[int, int]]:
        marked, plain = [], {}
        for partition, index in indexes.items():
            if not isinstance(index, int) or not 0 <= index <= INDEX_MAX:
                raise InvalidArgument(f"index {index!r} cannot be saved; pass one from 0 to {INDEX_MAX}")
            request = self.request(stream_name, partition, index, None)
            if request is None:
                plain[partition] = index
            else:
                marked.append(request)
        return marked, plain

    def _tell(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        for partition, index in indexes.items():
            request = SavePartitionIndex(self.client_id, stream_name, partition, index)
            self._session.core.notify(INDEX_SERVICE, encoded(INDEX_PARTITIONED, request))


async def resume(
    positions: Positions, stream_name: str, partitions: Sequence[int], on_reset: OnReset
) -> Sequence[KnownPosition]:
    """Returns the positions of these partitions with their marks, in order. If the object has no `resume`, they
    have no marks."""
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


def knows_no_marks(error: ClientError) -> bool:
    """Whether a node has refused a save because it knows no marks. The client has then connected to an older node."""
    return isinstance(error, RequestRefused) and MARKED_SAVE.name in str(error)


def check_keeps_positions(positions: P) -> P:
    if not hasattr(positions, "save_nowait"):
        raise InvalidArgument(
            "a consumer takes its name, under which the node keeps how far it came, or an object that keeps positions "
            f"(SavedIndexes, LeaseMember), not {type(positions).__name__}"
        )
    return positions


def check_name(name: str) -> str:
    if not name:
        raise InvalidArgument("the name of a consumer is empty; its position is kept under that name, so choose one")
    return name


def split_partitions(partitions: Sequence[int]) -> list[list[int]]:
    begins = range(0, len(partitions), LOAD_PARTITIONS_MAX)
    return [list(partitions[at : at + LOAD_PARTITIONS_MAX]) for at in begins]


def nothing() -> None:
    """Does nothing. This is the callback if no timer, request or listener is set."""
