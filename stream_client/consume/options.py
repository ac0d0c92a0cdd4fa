"""The options of a consumer, as a class with defaults and as keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar

import msgspec
import msgspec.structs

from stream_client.consume.page import PAGE_MESSAGES, OnHole

SAVE_INTERVAL_S = 1.0
IDLE_DELAY_S = 0.25
"""How long to wait before asking again if the node answers at once although it has no message."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer reads messages and saves its position.

    page_messages: the number of messages pulled at once. save_messages: save the position after this many messages;
    None: after each page. save_interval_s: save also when this time has passed. on_hole: called for each range of
    missing indexes. idle_delay_s: how long to wait before asking again if the node does not hold answers back until
    there is a message.
    """

    page_messages: int = PAGE_MESSAGES
    save_messages: int | None = None
    save_interval_s: float = SAVE_INTERVAL_S
    on_hole: OnHole | None = None
    idle_delay_s: float = IDLE_DELAY_S


class ConsumerArguments(TypedDict, total=False):
    """The fields of ConsumerOptions as the type of keyword arguments."""

    page_messages: int
    save_messages: int | None
    save_interval_s: float
    on_hole: OnHole | None
    idle_delay_s: float


F = TypeVar("F", bound=Callable[..., Any])


def with_options_shown(function: F) -> F:
    """Decorate a function with **options so that `help()` shows each field of ConsumerOptions with its default."""
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
