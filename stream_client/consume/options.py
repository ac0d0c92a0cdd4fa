"""The options of a consumer: as a class with defaults, and as the type of keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict, TypeVar

import msgspec
import msgspec.structs

from stream_client.consume.page import PAGE_MESSAGES, OnHole
from stream_client.errors import PositionReset, StreamRemade

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
