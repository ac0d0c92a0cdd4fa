"""TakeCreated: gives a mirror the creation time of its source, and the positions of its consumers, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from index_service.storage import move_positions
from stream_service import stored
from stream_service.mirror_operations import StreamChange
from stream_storage.contract import Session


class TakeCreated(StreamChange):
    """Changes the creation time of a stream. before_us, created_us: in microseconds since 1970."""

    __slots__ = ("before_us", "created_us", "name", "partition")

    def __init__(
        self,
        stream_id: int,
        name: str,
        partition: int,
        before_us: int,
        created_us: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(stream_id, on_done)
        self.name = name
        self.partition = partition
        self.before_us = before_us
        self.created_us = created_us

    def change(self, session: Session) -> None:
        stored.set_created(session, self.stream_id, self.created_us)
        move_positions(session, self.name, self.partition, self.before_us, self.created_us)
