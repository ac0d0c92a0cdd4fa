"""PartitionReading: one partition that a consumer reads. `ReadingLoop` reads several of them."""

from __future__ import annotations

from collections.abc import Sequence

from stream_client.consume.reader import Reader
from stream_client.core.marks import KnownPosition
from stream_client.core.partition_handle import PartitionHandle
from stream_service.extensions import RichMessage


class PartitionReading:
    """One partition that a consumer reads: its reader, its current page and its position.

    mark: the incarnation of the stream and the generation of the saved position, as far as they are known.
    messages: the current page, of which the program has received the first `at` messages.
    handed_index: the index after the last message that the program has received.
    next_index: the position, which is the index after the last processed message.
    saved_index: the highest position sent to be saved.
    kept_index: the highest position whose save was confirmed.
    unsaved: the number of messages processed since the last save.
    ended: whether the partition has been read to its end.

    Invariant: kept_index <= saved_index <= next_index <= handed_index.
    """

    __slots__ = (
        "at",
        "ended",
        "handed_index",
        "handle",
        "kept_index",
        "mark",
        "messages",
        "next_index",
        "reader",
        "saved_index",
        "unsaved",
    )

    def __init__(self, handle: PartitionHandle, reader: Reader, mark: KnownPosition) -> None:
        self.handle = handle
        self.mark = mark
        self.go_to(reader, mark.index)

    def go_to(self, reader: Reader, index: int) -> None:
        """Goes on at an index with a new reader. The current page is dropped."""
        self.reader = reader
        self.next_index = self.handed_index = self.saved_index = self.kept_index = index
        self.unsaved = 0
        self.ended = False
        self.drop_page()

    def drop_page(self) -> None:
        self.messages: Sequence[RichMessage] = ()
        self.at = 0

    @property
    def partition(self) -> int:
        return self.handle.partition

    @property
    def has_messages(self) -> bool:
        return self.at < len(self.messages)

    def hand_out_named(self) -> tuple[int, RichMessage]:
        return self.handle.partition, self.hand_out()

    def hand_out(self) -> RichMessage:
        message = self.messages[self.at]
        self.at += 1
        self.handed_index = message.index + 1
        return message

    def check(self) -> None:
        assert self.kept_index <= self.saved_index <= self.next_index <= self.handed_index
