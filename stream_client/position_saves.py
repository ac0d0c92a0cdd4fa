"""PositionSaves: saves the positions of a consumer in the node's index service, without waiting.

The async and the blocking `SavedIndexes` (`stream_client.positions`) share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from index_service.extensions import (
    LOAD_PARTITIONS_MAX,
    LOAD_POSITIONS,
    MARKED_SAVE,
    LoadRequest,
    LoadResponse,
    MarkedResponse,
    MarkedSave,
)
from index_service.limits import INDEX_MAX
from index_service.protocol import INDEX_PARTITIONED, GetPartitionIndex, PartitionIndex, SavePartitionIndex
from ockam.protocol import ProtocolError
from stream_client.arguments import encoded
from stream_client.core.marks import KnownPosition, Marks, OnReset
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import ClientError, InvalidArgument, RequestRefused, UnexpectedAnswer
from stream_client.requests import Requests

P = TypeVar("P")


class PositionSaves:
    """The saves of positions under one client id, and the client's knowledge of these positions (`core.marks`)."""

    def __init__(self, session: Requests, client_id: str) -> None:
        self._session = session
        self._marks = Marks(client_id)
        self._cancels: dict[tuple[str, int], Callable[[], None]] = {}
        self._checks: dict[tuple[str, int], Callable[[], None]] = {}
        self.client_id = client_id

    def __repr__(self) -> str:
        return f"<SavedIndexes of {self.client_id!r}>"

    def check_nowait(self, stream_name: str, partitions: Sequence[int]) -> None:
        """Asks, without waiting, whether somebody else has changed these positions. If so, calls the `on_reset` that
        was given to `SavedIndexes.resume`."""

        def checked(asked: Sequence[int], answer: LoadResponse | ClientError) -> None:
            if not isinstance(answer, ClientError):
                for partition, position in zip(asked, answer.positions, strict=False):
                    self._marks.checked(stream_name, partition, position)

        marked = [each for each in partitions if self._marks.find(stream_name, each) is not None]
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

    def request(self, stream_name: str, partition: int, index: int, fence: int) -> MarkedSave | None:
        """Returns the request that saves a position under a lease; None if the node does not know marks."""
        return self._marks.request(stream_name, partition, index, fence)

    def answered(self, request: MarkedSave, answer: MarkedResponse) -> None:
        self._marks.answered(request, answer)

    def _load_requests(self, stream_name: str, partitions: Sequence[int]) -> list[LoadRequest]:
        return [
            LoadRequest(0, self.client_id, stream_name, part, creates=True) for part in split_partitions(partitions)
        ]

    def _loaded(
        self, stream_name: str, partitions: Sequence[int], answers: Sequence[LoadResponse], on_reset: OnReset
    ) -> list[KnownPosition]:
        """Returns the positions in the answers to `_load_requests`. Raises UnexpectedAnswer if some are missing."""
        found = [position for answer in answers for position in answer.positions if position is not None]
        if len(found) != len(partitions):
            raise UnexpectedAnswer(f"{len(found)} positions came for {len(partitions)} partitions")
        return [
            self._marks.loaded(stream_name, partition, position, on_reset)
            for partition, position in zip(partitions, found, strict=True)
        ]

    def _saved(self, request: MarkedSave, answer: MarkedResponse | ClientError) -> None:
        if not isinstance(answer, ClientError):
            self._marks.answered(request, answer)
        elif knows_no_marks(answer):
            self._tell(request.stream_name, self._without_marks([request]))

    def _without_marks(self, requests: Sequence[MarkedSave]) -> dict[int, int]:
        """Returns the indexes of saves that an older node has refused. Their positions have no marks from now on."""
        for each in requests:
            mark = self._marks.find(each.stream_name, each.partition)
            if mark is not None:
                mark.generation = None
        return {each.partition: each.index for each in requests}

    def _split(self, stream_name: str, indexes: Mapping[int, int]) -> tuple[list[MarkedSave], dict[int, int]]:
        marked, plain = [], {}
        for partition, index in indexes.items():
            if not isinstance(index, int) or not 0 <= index <= INDEX_MAX:
                raise InvalidArgument(f"index {index!r} cannot be saved; pass one from 0 to {INDEX_MAX}")
            request = self._marks.request(stream_name, partition, index, None)
            if request is None:
                plain[partition] = index
            else:
                marked.append(request)
        return marked, plain

    def _tell(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        for partition, index in indexes.items():
            request = SavePartitionIndex(self.client_id, stream_name, partition, index)
            self._session.core.notify(INDEX_SERVICE, encoded(INDEX_PARTITIONED, request))


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


def check_answer(request: GetPartitionIndex, answer: PartitionIndex) -> None:
    asked = (request.client_id, request.stream_name, request.partition)
    if (answer.client_id, answer.stream_name, answer.partition) != asked:
        raise ProtocolError(f"the index service answered for {answer.stream_name!r}, not for {request.stream_name!r}")


def split_partitions(partitions: Sequence[int]) -> list[list[int]]:
    begins = range(0, len(partitions), LOAD_PARTITIONS_MAX)
    return [list(partitions[at : at + LOAD_PARTITIONS_MAX]) for at in begins]


def nothing() -> None:
    """Used as the callback if no timer, request or listener is set."""
