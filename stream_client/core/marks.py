"""Marks: the client's knowledge of the saved positions of one consumer. It sends nothing.

A position belongs to one incarnation of a stream: a stream that was deleted and made again under the same name is
another one, with another creation time. A position also has a generation, which changes when somebody else sets or
deletes the position. A save names both, so that the node can refuse a save that comes too late.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from index_service.extensions import FencedSave, LoadedPosition, MarkedResponse, MarkedSave, SaveStatus

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
        """Whether the index may be one that somebody has set, or the 0 of a new position. Else a consumer saved it."""
        # Whoever sets or makes a position gives it a generation that is not before `saved_us`. A consumer's save keeps
        # the generation. Positions of older versions have the generation 0, and say nothing.
        return not self.generation or self.generation >= self.saved_us


class Marks:
    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._marks: dict[tuple[str, int], KnownPosition] = {}

    def loaded(self, stream_name: str, partition: int, position: LoadedPosition, on_reset: OnReset) -> KnownPosition:
        mark = self._marks[stream_name, partition] = KnownPosition(position.index, position, on_reset)
        return mark

    def find(self, stream_name: str, partition: int) -> KnownPosition | None:
        return self._marks.get((stream_name, partition))

    def request(self, stream_name: str, partition: int, index: int, fence: int | None) -> MarkedSave | None:
        """Returns the request that saves an index, with the lease's fence; None if the generation is unknown."""
        mark = self._marks.get((stream_name, partition))
        if mark is None or mark.generation is None:
            return None
        return MarkedSave(
            request_id=0,
            client_id=self._client_id,
            stream_name=stream_name,
            partition=partition,
            index=index,
            fence=fence,
            created_us=mark.created_us,
            generation=mark.generation,
        )

    def begin(self, stream_name: str, partition: int, created_us: int, fence: int | None) -> MarkedSave | None:
        """Returns the request that saves index 0 in the new stream; None if the generation is unknown. The mark stays
        that of the former stream until the caller has the answer: after an error, it must begin once more."""
        request = self.request(stream_name, partition, 0, fence)
        return None if request is None else msgspec.structs.replace(request, created_us=created_us)

    def answered(self, request: FencedSave, answer: MarkedResponse) -> None:
        """Applies the answer to a save. If somebody else has changed the position, calls `on_reset`."""
        mark = self._marks.get((request.stream_name, request.partition))
        if mark is None or not isinstance(request, MarkedSave) or mark.generation != request.generation:
            # The position was loaded again since the save was sent.
            return
        if answer.status is SaveStatus.OK:
            mark.generation = answer.generation
        elif answer.status is SaveStatus.RESET and mark.on_reset is not None:
            mark.on_reset(request.partition)

    def checked(self, stream_name: str, partition: int, position: LoadedPosition | None) -> None:
        """Compares a position that was read again with its mark. If they differ, calls `on_reset`."""
        mark = self._marks.get((stream_name, partition))
        if mark is None or mark.generation is None or mark.on_reset is None:
            return
        if position is None or position.generation != mark.generation:
            mark.on_reset(partition)
