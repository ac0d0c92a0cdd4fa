"""The options of every command that asks a node beside --node, --context and --via: how long to wait, and how to speak.

They stand in no command's signature: `asks_node` adds them, and `asking` has what was given while the command runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Any, Literal, NamedTuple

import typer

CONTACT_TIMEOUT_S = 2.0
"""Without --timeout: a node that is there, and its services, say something within milliseconds."""

TimeoutOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        metavar="SECONDS",
        help="How long to wait for an answer: 2 s for the node's first sign of life, 30 s for others, unless given.",
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="NAME",
        envvar="STREAM_NODE_SERVICE",
        help="What the stream service is called there: `stream` at real Ockam services.",
    ),
]
IndexServiceOption = Annotated[
    str | None,
    typer.Option(
        "--index-service",
        metavar="NAME",
        envvar="STREAM_NODE_INDEX_SERVICE",
        help="What the index service is called there, if not as --service with _index.",
    ),
]
FramingOption = Annotated[
    Literal["head", "legacy", "auto"] | None,
    typer.Option(
        "--framing",
        envvar="STREAM_NODE_FRAMING",
        help="How to speak: legacy with Ockam services of before 2024-06, auto to find out.",
    ),
]


class Asking(NamedTuple):
    """What was given; None where nothing was."""

    timeout: float | None = None
    service: str | None = None
    index_service: str | None = None
    framing: Literal["head", "legacy", "auto"] | None = None

    @property
    def contact_timeout_s(self) -> float:
        """How long the node may be without any sign of life."""
        return CONTACT_TIMEOUT_S if self.timeout is None else self.timeout


_given: ContextVar[Asking] = ContextVar("asking", default=Asking())  # noqa: B039  (frozen)


def asking() -> Asking:
    """What was given to the command that runs."""
    return _given.get()


def asks_node(command: Callable[..., None], *, speaks_blocks: bool = False) -> Callable[..., None]:
    """The command with these options, if it has --node. speaks_blocks: how to speak is no choice there."""
    own = inspect.signature(command, eval_str=True).parameters
    if "node" not in own:
        return command
    shared: dict[str, Any] = {"timeout": TimeoutOption}
    if not speaks_blocks:
        shared |= {"service": ServiceOption, "index_service": IndexServiceOption, "framing": FramingOption}
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    added = [inspect.Parameter(name, named, default=None, annotation=kind) for name, kind in shared.items()]
    parameters = [*own.values(), *added]

    @functools.wraps(command)
    def typed(**given: Any) -> None:
        token = _given.set(Asking(**{name: given.pop(name) for name in shared}))
        try:
            command(**given)
        finally:
            _given.reset(token)

    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {each.name: each.annotation for each in parameters}
    return typed
