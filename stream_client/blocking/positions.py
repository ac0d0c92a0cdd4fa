# Generated from stream_client/positions.py by tools/generate_blocking.py; do not edit.
"""Saves the positions of consumers, in the node's index service (`SavedIndexes`) or in another object (`Positions`).

The position of a consumer in a partition is the next index to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from index_service.limits import INDEX_MAX
from index_service.protocol import (
    INDEX_PARTITIONED,
    GetPartitionIndex,
    PartitionIndex,
    SavePartitionIndex,
)
from ockam.protocol import ProtocolError
from stream_client.blocking.session import Session
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import InvalidArgument, NodeFailed

P = TypeVar("P")

SAVES_MAX = 5
"""A save is sent this many times at most: it has no answer, and can be lost together with a connection."""


class Positions(Protocol):
    """The interface of an object that saves a consumer's positions: for each partition, the next index to read.

    `SavedIndexes` saves positions on the node. A program can write its own class, for example to save them in its
    database.
    """

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Return the saved index of each of these partitions, in order; 0 for a partition without a saved index."""
        ...

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save the index of each partition in `indexes`. When this method returns, the indexes are safely stored."""
        ...

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Begin to save the index of each partition in `indexes`, without waiting. A save can be lost."""
        ...


class SavedIndexes:
    """The positions that a node's index service saves under one client id: the next index to read of each partition.

    The service keeps the highest index saved so far, and does not confirm a save. So `save` reads the indexes back, and
    saves again if a save was lost together with a connection.
    """

    def __init__(self, client: Session, client_id: str) -> None:
        """client: a StreamClient.
        client_id: the name under which the node saves the positions.
        """
        self._session = client
        self.client_id = client_id

    def __repr__(self) -> str:
        return f"<SavedIndexes of {self.client_id!r}>"

    def get(self, stream_name: str, partition: int = 0) -> int:
        """Return the saved index of one partition; 0 if no index was saved. The errors raised are those of `load`."""
        return (self.load(stream_name, (partition,)))[0]

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Return the saved index of each of these partitions, in order; 0 for a partition without a saved index.

        Raises ClientError if a request fails, and ProtocolError if an answer belongs to another request.
        """
        requests = [GetPartitionIndex(self.client_id, stream_name, partition) for partition in partitions]
        answers = self._session.ask_all(INDEX_SERVICE, INDEX_PARTITIONED, requests)
        for request, answer in zip(requests, answers, strict=True):
            _check(request, answer)
        return [answer.index or 0 for answer in answers]

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save the index of each partition in `indexes`. When this method returns, the node has stored these or higher
        indexes.

        Raises InvalidArgument for an index that no node can save, and NodeFailed if the node does not store it, for
        example because its disk is full.
        """
        missing = dict(indexes)
        for _ in range(SAVES_MAX):
            if not missing:
                return
            self.save_nowait(stream_name, missing)
            kept = dict(zip(missing, self.load(stream_name, list(missing)), strict=True))
            missing = {partition: index for partition, index in missing.items() if kept[partition] < index}
        if missing:
            raise NodeFailed(f"{self._session.address} does not store the position of {self.client_id!r}; read its log")

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the index of each partition to the node, without waiting. Without a connection, the save is lost.

        Raises InvalidArgument for an index that no node can save.
        """
        for partition, index in indexes.items():
            if not 0 <= index <= INDEX_MAX:
                raise InvalidArgument(f"index {index} cannot be saved; pass one from 0 to {INDEX_MAX}")
            request = SavePartitionIndex(self.client_id, stream_name, partition, index)
            self._session.core.tell(INDEX_SERVICE, INDEX_PARTITIONED.encode_request(request))


def to_positions(session: Session, positions: Positions | str) -> Positions:
    """Return the object that saves a consumer's positions.

    Raises InvalidArgument if the name is empty or the object cannot save positions.

    positions: the consumer's name, for which a `SavedIndexes` is made; or an object that saves positions, which is
        returned unchanged.
    """
    if isinstance(positions, str):
        return SavedIndexes(session, check_name(positions))
    return check_keeps_positions(positions)


def check_keeps_positions(positions: P) -> P:
    """Return `positions`, an object that saves positions. If it cannot save positions, raise InvalidArgument."""
    if not hasattr(positions, "save_nowait"):
        raise InvalidArgument(
            "a consumer takes its name, under which the node keeps how far it came, or an object that keeps positions "
            f"(SavedIndexes, LeaseMember), not {type(positions).__name__}"
        )
    return positions


def check_name(name: str) -> str:
    """Return the name of a consumer or of a consumer group. Raises InvalidArgument if the name is empty."""
    if not name:
        raise InvalidArgument("the name of a consumer is empty; its position is kept under that name, so choose one")
    return name


def _check(request: GetPartitionIndex, answer: PartitionIndex) -> None:
    """Raise ProtocolError if the index service's answer belongs to another request."""
    asked = (request.client_id, request.stream_name, request.partition)
    if (answer.client_id, answer.stream_name, answer.partition) != asked:
        raise ProtocolError(f"the index service answered for {answer.stream_name!r}, not for {request.stream_name!r}")
