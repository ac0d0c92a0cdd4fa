"""`python -m bench`: measures a node on this machine, beside other systems, and holds the figures against goals.

    python -m bench push --peer valkey --messages 100000

Exit codes and errors are those of `stream-node`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.run import Options, run_bench
from stream_node.cli.app import run


def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="push, many, many-clients, pull, latency, deliver, loads, share, group, deleting, standing, fanout, "
            "codec, actors, trouble, user-tests, large, cardinal, block, backfill, grpc, security, http, flood, "
            "watching, postgres, cluster, export, export-ways, export-start or all; costs (what streams, pages, groups "
            "and an idle node cost, in half an hour); scale (how cost grows), or a part of it: sizes, streams, "
            "clients, memory, idle, slow, logs."
        ),
    ] = "all",
    peer: Annotated[str | None, typer.Option(help="all, or the name of one: measured in turn with us.")] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Measure us with compiled modules, too. Building them takes a minute.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run of some seconds.")] = False,
    messages: Annotated[int | None, typer.Option(min=1, help="Messages of a measurement.")] = None,
    size: Annotated[int | None, typer.Option(min=0, help="Bytes of a message.")] = None,
    output: Annotated[Path | None, typer.Option(help="A file for the report in JSON.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep there what is not measured now.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report in JSON.")] = False,
) -> None:
    """Measure a node on this machine. Every push is fsynced before its confirm; the data lies under the working
    directory, and is gone at the end."""
    options = Options(
        peer=peer,
        compiled=compiled,
        output=output,
        keep=keep,
        quick=quick,
        as_json=as_json,
        messages=messages,
        size_bytes=size,
    )
    run_bench(what, options)


def build() -> typer.Typer:
    """Returns the command, which has no subcommands."""
    app = typer.Typer(name="bench", rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(bench)
    return app


if __name__ == "__main__":
    sys.exit(run(build()))
