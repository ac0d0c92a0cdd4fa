"""The command `stream-node top`: shows a node live in the terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stream_node.cli.client import open_client, run_to_signal
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions
from stream_node.cli.output import AS_JSON, say_json
from stream_node.cli.values import UsageError

if TYPE_CHECKING or RUNS:
    import msgspec
    import trio
    from rich.console import Console

    from stream_node.top.reading import NodeReader, make_view
    from stream_node.top.screen import draw, show_live

PIPE_COLUMNS = 120
"""The width of the text of --once if stdout is no terminal and COLUMNS does not set another one."""


def top(
    prefix: Annotated[str, "Only streams whose names begin with this text."] = "",
    interval: Annotated[float, typer.Option(min=0.1, max=3600.0), "SECONDS", "The time between two readings."] = 2.0,
    sort: Annotated[
        Literal["rate", "lag", "size", "messages", "name"], "The order of the rows, largest first."
    ] = "rate",
    once: Annotated[bool, "Print one view, after one interval, and exit."] = False,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Show the rates, commit times, streams, consumers with their lag, and blocks of a node, live in the terminal.

    q ends it, and s changes the order. With --json it prints one object for each interval, until it is stopped.

    Example: stream-node top --sort lag

    For a script: stream-node top --once --json
    """
    if not (once or AS_JSON.get()) and not sys.stdout.isatty():
        raise UsageError("stdout is no terminal; use --once for one view as text, or --json")
    target = node.target()
    address = (target.address, *target.via)[-1]

    async def main() -> None:
        # The client connects again by itself, and a view says that the node is gone.
        async with open_client(target, lambda _: None) as client:
            reader = NodeReader(client, prefix)
            if not (once or AS_JSON.get()):
                return await show_live(reader, address, interval, sort, Console())
            before = await reader.read()
            while True:
                await trio.sleep(interval)
                now = await reader.read()
                view = make_view(before, now, sort)
                if AS_JSON.get():
                    say_json({"node": address, **msgspec.to_builtins(view)})
                else:
                    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
                    console = Console(width=width)
                    console.print(draw(view, address, sort, console.width, None))
                if once:
                    return
                before = now

    run_to_signal(main)
