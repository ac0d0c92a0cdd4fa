# Generated from stream_client/positions.py by tools/generate_blocking.py; do not edit.
"""The positions of consumers: kept in the node's index service by name, or anywhere by the protocol `Positions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from index_service.protocol import (
    INDEX_PARTITIONED,
    GetPartitionIndex,
    PartitionIndex,
    SavePartitionIndex,
)
from ockam.protocol import ProtocolError
from stream_client.blocking.session import Session
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import InvalidArgument

P = TypeVar("P")


class Positions(Protocol):
    """Keeps the next index to read of each partition. `SavedIndexes` does so on the node; you may write another."""

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each partition, 0 where there is none."""
        ...

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition; they are kept when this returns."""
        ...

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting; it is lost where there is no connection just now."""
        ...


class SavedIndexes:
    """The positions that a node's index service keeps under one client id: the next index to read of each partition.

    The service keeps the highest index ever saved, and does not answer a save. So `save` asks for the kept index
    afterwards, and saves again where a lost connection took the save with it.
    """

    def __init__(self, client: Session, client_id: str) -> None:
        """client: a StreamClient."""
        self._session = client
        self.client_id = client_id

    def __repr__(self) -> str:
        return f"<SavedIndexes of {self.client_id!r}>"

    def get(self, stream_name: str, partition: int = 0) -> int:
        """The saved index; 0 where none was saved. Raises ClientErrors of the client, and ProtocolError."""
        return (self.load(stream_name, (partition,)))[0]

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none. Raises ClientErrors of the client, and ProtocolError."""
        requests = [GetPartitionIndex(self.client_id, stream_name, partition) for partition in partitions]
        answers = self._session.ask_all(INDEX_SERVICE, INDEX_PARTITIONED, requests)
        for request, answer in zip(requests, answers, strict=True):
            _check(request, answer)
        return [answer.index or 0 for answer in answers]

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition; they, or higher ones, are kept when this returns."""
        missing = dict(indexes)
        while missing:
            self.save_nowait(stream_name, missing)
            kept = dict(zip(missing, self.load(stream_name, list(missing)), strict=True))
            missing = {partition: index for partition, index in missing.items() if kept[partition] < index}

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting; it is lost where there is no connection just now."""
        for partition, index in indexes.items():
            request = SavePartitionIndex(self.client_id, stream_name, partition, index)
            self._session.core.tell(INDEX_SERVICE, INDEX_PARTITIONED.encode_request(request))


def to_positions(session: Session, positions: Positions | str) -> Positions:
    """Positions as they are, or for a name those that the node keeps under it. Raises InvalidArgument."""
    if isinstance(positions, str):
        return SavedIndexes(session, check_name(positions))
    return check_keeps_positions(positions)


def check_keeps_positions(positions: P) -> P:
    """Raises InvalidArgument for an object that keeps no positions."""
    if not hasattr(positions, "save_nowait"):
        raise InvalidArgument(
            "a consumer takes its name, under which the node keeps how far it came, or an object that keeps positions "
            f"(SavedIndexes, LeaseMember), not {type(positions).__name__}"
        )
    return positions


def check_name(name: str) -> str:
    """The name of a consumer or of a group. Raises InvalidArgument where it is empty."""
    if not name:
        raise InvalidArgument("the name of a consumer is empty; its position is kept under that name, so choose one")
    return name


def _check(request: GetPartitionIndex, answer: PartitionIndex) -> None:
    """Raises ProtocolError for an answer to another request."""
    asked = (request.client_id, request.stream_name, request.partition)
    if (answer.client_id, answer.stream_name, answer.partition) != asked:
        raise ProtocolError(f"the index service answered for {answer.stream_name!r}, not for {request.stream_name!r}")
