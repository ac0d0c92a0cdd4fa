"""Completes names in a shell. If the node cannot be asked, there are none: an error would stand in the line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from stream_client.blocking import StreamClient

PATIENCE_S = 1.0
LISTED_MAX = 1_000


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    return _asked(ctx, lambda client: (each.stream_name for each in client.list_streams(incomplete)))


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of consumers that have saved a position: in the given stream, or without one in any stream."""
    from stream_client.blocking import list_positions

    stream = ctx.params.get("stream")
    found = _asked(ctx, lambda client: (each.client_id for each in list_positions(client, stream_name=stream)))
    return [each for each in found if each.startswith(incomplete)]


def complete_context(incomplete: str) -> list[str]:
    from stream_node.cli.contexts import ContextError, contexts_file, load_contexts

    try:
        return [name for name in load_contexts(contexts_file()).targets if name.startswith(incomplete)]
    except ContextError:
        return []


def _asked(ctx: typer.Context, ask: Callable[[StreamClient], Iterable[str]]) -> list[str]:
    from ockam.errors import InvalidAddress
    from stream_client import ClientError, blocking
    from stream_node.cli.contexts import ContextError, resolve_target
    from stream_node.cli.groups import take
    from stream_node.cli.request_options import RequestOptions, reaching, services_of
    from stream_node.cli.values import UsageError

    given = take(RequestOptions, dict(ctx.params))
    node = ctx.params.get("node") or os.environ.get("STREAM_NODE_ADDRESS")
    try:
        target = resolve_target(node, ctx.params.get("context"), ctx.params.get("via") or ())
        with blocking.connect(
            target.address,
            answer_timeout_s=PATIENCE_S,
            contact_timeout_s=PATIENCE_S,
            **services_of(target, given),
            **reaching(target, given),
        ) as client:
            return sorted(set(islice(ask(client), LISTED_MAX)))
    except (ClientError, ContextError, InvalidAddress, UsageError):
        return []
