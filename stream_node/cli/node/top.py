"""The command `stream-node top`: shows what a node does, live in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stream_node.cli.client import open_client, run_to_signal
from stream_node.cli.options import ContextOption, JsonOption, NodeOption, ViaOption
from stream_node.cli.output import say_json
from stream_node.cli.request_options import STANDING_TIMEOUT_S, with_request_options
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from stream_node.top.rates import SortKey, View
    from stream_node.top.reading import Reader

PIPE_COLUMNS = 120
"""The width of the text of --once if stdout is no terminal and COLUMNS does not set another one."""


def register(app: typer.Typer) -> None:
    app.command()(with_request_options(top))


def top(
    prefix: Annotated[str, typer.Option(help="Only streams whose names begin with this text.")] = "",
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600.0, metavar="SECONDS", help="The time between two readings.")
    ] = 2.0,
    sort: Annotated[
        Literal["rate", "lag", "size", "messages", "name"], typer.Option(help="The order of the rows, largest first.")
    ] = "rate",
    once: Annotated[bool, typer.Option("--once", help="Print one view, after one interval, and exit.")] = False,
    node: NodeOption = None,
    context: ContextOption = None,
    via: ViaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rates, commit times, streams, consumers with their lag, and blocks of a node, live in the terminal.

    q ends it, and s changes the order. With --json it prints one object for each interval, until it is stopped.

    Example: stream-node top --sort lag

    For a script: stream-node top --once --json
    """
    if not (once or as_json) and not sys.stdout.isatty():
        raise UsageError("stdout is no terminal; use --once for one view as text, or --json")
    from stream_node.cli.contexts import resolve_target

    target = resolve_target(node, context, via or ())
    address = (target.address, *target.via)[-1]

    async def main() -> None:
        from stream_node.top.reading import Reader

        # The client connects again by itself, and a view says that the node is gone.
        async with open_client(target, lambda _: None, contact_s=STANDING_TIMEOUT_S) as client:
            reader = Reader(client, prefix)
            if once or as_json:
                await _print(reader, address, sort, interval, once, as_json)
            else:
                from rich.console import Console

                from stream_node.top.live import LiveTop

                await LiveTop(reader, address, interval, sort, Console()).run()

    run_to_signal(main)


async def _print(reader: Reader, node: str, sort: SortKey, interval_s: float, once: bool, as_json: bool) -> None:
    """Prints a view after each interval, or only the first one."""
    import trio

    from stream_node.top.rates import make_view

    before = await reader.read()
    while True:
        await trio.sleep(interval_s)
        now = await reader.read()
        view = make_view(before, now, sort)
        if as_json:
            say_json(_report(view, node))
        else:
            _print_text(view, node, sort)
        if once:
            return
        before = now


def _print_text(view: View, node: str, sort: str) -> None:
    import os

    from rich.console import Console

    from stream_node.top.screen import draw

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    console = Console(width=width)
    console.print(draw(view, node, sort, console.width, None))


def _report(view: View, node: str) -> dict[str, Any]:
    import msgspec

    return {"node": node, **msgspec.to_builtins(view)}
