"""StreamBounds: the id and the bounds of one stream-partition in memory, which all parts of its worker share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream_service.role_machine import SOURCE_ROLES, StreamRole

if TYPE_CHECKING:
    from stream_service.mirror_rows import MirrorRow
    from stream_service.stored import StoredStream
    from stream_storage.contract import StreamRecord
    from stream_storage.history import History


class StreamBounds:
    """The attributes of a stream that its worker knows without a read. Everybody reads the attributes; only the methods
    of this class change them."""

    __slots__ = ("_mirror_refusal", "created_us", "first_index", "history", "hold", "mirror", "next_index", "stream_id")

    def __init__(self, stream_id: int, first_index: int, next_index: int) -> None:
        self.stream_id = stream_id
        self.first_index = first_index  # the index of the earliest stored message
        self.next_index = next_index  # the index that the next message will get
        self.history: History = ()  # empty until somebody has asked for it
        self.mirror: MirrorRow | None = None  # the row of the stream in the table of mirrors, if any
        self.hold: str | None = None  # why a primary stores nothing at present; a change of its role ends no hold
        self.created_us = 0  # tells the incarnations of a name apart; in microseconds since 1970
        self._mirror_refusal: str | None = None

    @property
    def is_mirror(self) -> bool:
        return self.mirror is not None and self.mirror.follows

    @property
    def source_role(self) -> int:
        return SOURCE_ROLES[StreamRole.PRIMARY if self.mirror is None else self.mirror.role]

    @property
    def refusal(self) -> str | None:
        """The reason why the stream takes no pushes: it is a mirror, or held; None: it takes them."""
        return self._mirror_refusal or self.hold

    def open(self, stream: StoredStream, hold: str | None) -> None:
        """Takes everything but the history from a stream that was just read."""
        record = stream.record
        self.stream_id, self.created_us, self.hold = record.stream_id, record.created_us, hold
        self.move(record.first_index, record.next_index)
        self.set_mirror(stream.mirror, record.name)

    def grow(self, messages: int) -> None:
        self.next_index += messages

    def truncate(self, first_index: int) -> None:
        """Moves the beginning, because the messages before this index were deleted."""
        self.first_index = first_index

    def move(self, first_index: int, next_index: int) -> None:
        self.first_index, self.next_index = first_index, next_index

    def become(self, record: StreamRecord) -> None:
        """Takes the bounds of a stream that was changed as a whole. It may have lost its last messages, too."""
        # A truncation that is under way may already have moved the first index further than the change has seen.
        first_index = max(record.first_index, self.first_index)
        self.move(min(first_index, record.next_index), record.next_index)
        self.created_us = record.created_us

    def set_mirror(self, mirror: MirrorRow | None, name: str) -> None:
        """Takes the row of this stream in the table of mirrors. name: the name of the stream."""
        self.mirror = mirror
        self._mirror_refusal = None if mirror is None else mirror.find_refusal(name)

    def set_hold(self, reason: str | None) -> None:
        self.hold = reason

    def set_history(self, history: History) -> None:
        self.history = history

    def learn_history(self, history: History) -> History:
        """Keeps a history that was read from the database, unless a change has set one meanwhile. Returns the one that
        is kept."""
        if not self.history:
            self.history = history
        return self.history
