"""Page: the messages of one answer to a pull, and the missing indexes between them.
ConsumerOptions: how a consumer reads pages and saves its position; ConsumerArguments is the type of keyword arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, TypedDict, TypeVar

import msgspec
import msgspec.structs

from stream_client.errors import PositionReset, StreamRemade
from stream_service.extensions import MarkedPage, RichMessage, RichPage
from stream_service.page_codec import PackedMessages
from stream_service.protocol import StreamMessage

PAGE_MESSAGES = 1_000

OnHole: TypeAlias = Callable[[int, int, int], None]
"""The type of a function called for missing indexes: the partition, the first missing and the next existing index."""


class Page(msgspec.Struct, frozen=True):
    """The messages of one answer to a pull, in order. There can be none.

    first_index, next_index: the bounds of the stream when the page was read; None: the node did not report them.
    resume_index: the index where the next page begins.
    created_us: when the stream was created, in microseconds since 1970; None if the node did not report it.
    """

    messages: Sequence[RichMessage]
    first_index: int | None
    next_index: int | None
    resume_index: int
    created_us: int | None = None

    @property
    def at_end(self) -> bool:
        """Whether the stream had no message after this page when the page was read."""
        # A page is empty only if no message follows. The resume index of an empty page is the requested index. It is
        # lower than next_index if all messages of the stream have been deleted.
        return not self.messages or (self.next_index is not None and self.resume_index >= self.next_index)


def find_holes(messages: Sequence[RichMessage | StreamMessage], expected: int | None) -> list[tuple[int, int]]:
    """Returns the ranges of missing indexes before and between `messages`, as (first missing index, next existing
    index). `messages` is not empty. `expected`: the index that the first message should have; None: any is right."""
    first = messages.start if isinstance(messages, PackedMessages) else messages[0].index
    holes = [(expected, first)] if expected is not None and expected < first else []
    # The indexes of a packed page are consecutive, so its messages need not be decoded here.
    if not isinstance(messages, PackedMessages) and messages[-1].index - first + 1 != len(messages):
        for earlier, later in pairwise(messages):
            if later.index > earlier.index + 1:
                holes.append((earlier.index + 1, later.index))
    return holes


def page_of(page: RichPage) -> Page:
    """Returns the page of an answer to a pull."""
    created_us = page.created_us if isinstance(page, MarkedPage) else None
    return Page(page.messages, page.first_index, page.next_index, page.resume_index, created_us)


SAVE_INTERVAL_S = 1.0
IDLE_DELAY_S = 0.25


OnEvent: TypeAlias = Callable[[StreamRemade | PositionReset], None]
"""The type of a function that is called when a consumer has to continue at another position."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for how a consumer reads messages and saves its position. `Stream.consumer` explains them."""

    page_messages: int = PAGE_MESSAGES
    save_messages: int | None = None
    save_interval_s: float = SAVE_INTERVAL_S
    on_hole: OnHole | None = None
    on_event: OnEvent | None = None
    idle_delay_s: float = IDLE_DELAY_S


class ConsumerArguments(TypedDict, total=False):
    """The keyword arguments of a consumer: the fields of ConsumerOptions. `Stream.consumer` explains them."""

    page_messages: int
    save_messages: int | None
    save_interval_s: float
    on_hole: OnHole | None
    on_event: OnEvent | None
    idle_delay_s: float


F = TypeVar("F", bound=Callable[..., Any])


def with_options_shown(function: F) -> F:
    """Makes `help()` show the fields of ConsumerOptions with their defaults, for a function that takes **options."""
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
