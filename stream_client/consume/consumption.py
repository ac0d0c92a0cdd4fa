"""What every consumer does: read partitions in turn, know what is processed, and save it. Whose partitions, it is told.

A message counts as processed when the next one is asked for. What is saved is the next index to read, as the real
clients do; resuming pulls exactly that, so nothing is skipped. After a crash, what lies behind the last save comes
again. Saves go out in order, and never run ahead of what was processed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

import msgspec
import msgspec.structs

from stream_client.consume.follower import PAGE_MESSAGES, OnHole, find_holes
from stream_client.consume.reader import IDLE_DELAY_S, LONG_POLL_S, Merge, Page, Reader
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, RequestTimeout
from stream_client.shell.session import Session
from stream_service.extensions import FromIndex, RichMessage

SAVE_INTERVAL_S = 1.0


class Positions(Protocol):
    """Keeps the next index to read of each partition; `stream_client.positions.saved.SavedIndexes` does."""

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none."""
        ...

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition; they are kept when this returns."""
        ...

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting; lost where there is no connection just now."""
        ...


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer reads and saves.

    page_messages: how many to pull at once. save_messages: save after so many, at the latest; None: a page.
    save_interval_s: and after this time. on_hole: told of missing indexes, as they are passed. idle_delay_s: how long
    to wait before asking again where the node does not hold answers.
    """

    page_messages: int = PAGE_MESSAGES
    save_messages: int | None = None
    save_interval_s: float = SAVE_INTERVAL_S
    on_hole: OnHole | None = None
    idle_delay_s: float = IDLE_DELAY_S


class ConsumerArguments(TypedDict, total=False):
    """The fields of ConsumerOptions, as keyword arguments."""

    page_messages: int
    save_messages: int | None
    save_interval_s: float
    on_hole: OnHole | None
    idle_delay_s: float


F = TypeVar("F", bound=Callable[..., Any])


def with_options_shown(function: F) -> F:
    """Have `help()` show each field of ConsumerOptions with its default, where the function takes **options."""
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    shown = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=inspect.formatannotation(field.type),
        )
        for field in msgspec.structs.fields(ConsumerOptions)
    ]
    function.__signature__ = signature.replace(parameters=[*kept, *shown])  # type: ignore[attr-defined]
    return function


class Part:
    """One partition being consumed: its reader, and the page at hand, of which `at` messages have been handed out.

    handed_index: everything below has been handed out. next_index: and is processed. saved_index: and is sent to be
    saved. kept_index: and the other side has said that it keeps it.
    Invariant: kept_index <= saved_index <= next_index <= handed_index.
    """

    __slots__ = (
        "at",
        "ended",
        "handed_index",
        "handle",
        "kept_index",
        "messages",
        "next_index",
        "reader",
        "saved_index",
        "unsaved",
    )

    def __init__(self, handle: PartitionHandle, reader: Reader, index: int) -> None:
        self.handle = handle
        self.reader = reader
        self.next_index = self.handed_index = self.saved_index = self.kept_index = index
        self.unsaved = 0
        self.messages: Sequence[RichMessage] = ()
        self.at = 0
        self.ended = False

    @property
    def partition(self) -> int:
        return self.handle.partition

    @property
    def has_messages(self) -> bool:
        """Whether the page at hand has messages that have not been handed out."""
        return self.at < len(self.messages)

    def hand_out_named(self) -> tuple[int, RichMessage]:
        """Partition and message."""
        return self.handle.partition, self.hand_out()

    def hand_out(self) -> RichMessage:
        """The next message of the page, which there is."""
        message = self.messages[self.at]
        self.at += 1
        self.handed_index = message.index + 1
        return message


class Consumption:
    """The parts of one stream that one consumer reads.

    holes: how many indexes were missing, in all of them. processed: how many messages were, since the start.
    current: the part whose messages are being handed out. woken: `wake` has been called; cleared by `next_part` where
    it ends its wait, or by who looks at it.
    """

    def __init__(self, session: Session, stream_name: str, positions: Positions, options: ConsumerOptions) -> None:
        self._session = session
        self._stream_name = stream_name
        self._positions = positions
        self._options = options
        self._save_messages = options.save_messages or options.page_messages
        self._merge = Merge(session.shell)
        self._by_reader: dict[Reader, Part] = {}
        self.current: Part | None = None
        self._save_due_s = math.inf
        self.parts: dict[int, Part] = {}
        self.holes = 0
        self.processed = 0
        self.woken = False

    async def add(self, handles: Sequence[PartitionHandle]) -> None:
        """Read these partitions too, each from its saved position on."""
        new = [handle for handle in handles if handle.partition not in self.parts]
        if not new:
            return
        indexes = await self._positions.load(self._stream_name, [handle.partition for handle in new])
        for handle, index in zip(new, indexes, strict=True):
            reader = Reader(
                self._session,
                handle,
                FromIndex(index),
                page_messages=self._options.page_messages,
                waits=True,
                on_page=self._merge.arrived,
                idle_delay_s=self._options.idle_delay_s,
            )
            self.parts[handle.partition] = self._by_reader[reader] = Part(handle, reader, index)

    def drop(self, partition: int) -> None:
        """Read this partition no more; what it had is forgotten."""
        part = self.parts.pop(partition)
        del self._by_reader[part.reader]
        self._merge.drop(part.reader)
        if part is self.current:
            self.current = None

    def stop(self) -> None:
        for partition in list(self.parts):
            self.drop(partition)

    def begin(self) -> None:
        """An iteration begins, or is taken up again: ends are looked for anew."""
        for part in self.parts.values():
            part.ended = False

    def wake(self) -> None:
        """End the wait of `next_part`, now or when it comes to wait."""
        self.woken = True
        self._merge.wake()

    def commit(self) -> None:
        """What has been handed out is processed: the next message is being asked for."""
        part = self.current
        if part is None or part.handed_index == part.next_index:
            return
        part.next_index = part.handed_index
        part.unsaved += 1
        self.processed += 1
        now_s = self._session.shell.now_s()
        if part.unsaved >= self._save_messages or now_s >= self._save_due_s:
            self.save_nowait()
        elif self._save_due_s == math.inf:
            self._save_due_s = now_s + self._options.save_interval_s

    async def next_part(self, stop_at_end: bool) -> Part | None:
        """The part whose messages come next; None at the end of all, or where `wake` ended the wait.

        Raises RequestTimeout where it is to stop at the end, and the node does not tell whether that is there.
        """
        if self.current is not None and self.current.has_messages:
            return self.current
        self._ask(stop_at_end)
        patience_s = self._session.answer_timeout_s if stop_at_end else None
        give_up_s = math.inf if patience_s is None else self._session.shell.now_s() + patience_s + LONG_POLL_S
        while not (stop_at_end and self.has_ended()):
            if self.woken:
                self.woken = False
                return None
            reader = await self._merge.next_ready(min(self._save_due_s, give_up_s) - self._session.shell.now_s())
            now_s = self._session.shell.now_s()
            if now_s >= self._save_due_s:
                self.save_nowait()
            if reader is None:
                if now_s >= give_up_s:
                    raise RequestTimeout(f"{self._session.address} has not answered a pull in time")
            elif await self._turn_page(self._by_reader[reader], stop_at_end):
                return self.current
        await self.save()
        return None

    def has_ended(self) -> bool:
        """Whether every part was read to where its stream ended."""
        return all(part.ended for part in self.parts.values())

    def save_nowait(self) -> None:
        """Send the positions that have moved since the last save."""
        moved = {
            partition: part.next_index for partition, part in self.parts.items() if part.next_index > part.saved_index
        }
        if moved:
            self._positions.save_nowait(self._stream_name, moved)
        self._saved(moved)

    async def save(self, partitions: Collection[int] | None = None) -> None:
        """Save the positions that have moved, of some partitions or all; they are kept when this returns."""
        chosen = self.parts if partitions is None else partitions
        moved = {
            partition: part.next_index
            for partition, part in self.parts.items()
            if partition in chosen and part.next_index > part.kept_index
        }
        if moved:
            await self._positions.save(self._stream_name, moved)
            for partition, index in moved.items():
                self.parts[partition].kept_index = index
        self._saved(moved)

    def _saved(self, indexes: Mapping[int, int]) -> None:
        for partition, index in indexes.items():
            part = self.parts.get(partition)
            if part is not None:
                part.saved_index = max(part.saved_index, index)
                part.unsaved = 0
        self._save_due_s = math.inf

    def _ask(self, stop_at_end: bool) -> None:
        """Have a page of each part on its way."""
        for part in self.parts.values():
            part.reader.waits = not stop_at_end
            if not (stop_at_end and part.ended):
                part.reader.ask()

    async def _turn_page(self, part: Part, stop_at_end: bool) -> bool:
        """Take the page that has come, and ask for the one behind it; whether it has messages."""
        page = part.reader.take()
        self._check(part, page)
        part.ended = page.at_end
        # Kept before anything can be cancelled or raise: the reader has moved on, so nobody asks for it again.
        part.messages, part.at = page.messages, 0
        if page.messages:
            self.current = part
            self._tell_holes(part)
        if not (stop_at_end and part.ended):
            part.reader.ask()
            await self._session.shell.give_way()
        return bool(page.messages)

    def _check(self, part: Part, page: Page) -> None:
        """Whether the stream is the one that the position is of."""
        if page.next_index is not None and page.next_index < part.next_index:
            raise PositionBeyondEnd(
                f"the position of {self._stream_name!r}, partition {part.partition} is {part.next_index}, and the "
                f"stream ends at {page.next_index}: it was made again; set the position to go on"
            )

    def _tell_holes(self, part: Part) -> None:
        """Holes in front of and inside the page at hand, of which nothing has been handed out."""
        for first_missing, next_there in find_holes(part.messages, part.handed_index or None):
            self.holes += next_there - first_missing
            if self._options.on_hole is not None:
                self._options.on_hole(part.partition, first_missing, next_there)
