"""`stream-node verify`, `demo` and `bench`: what an operator runs beside a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli.streams import JsonOption


def register(app: typer.Typer) -> None:
    app.command()(verify)
    app.command()(demo)
    app.command()(bench)


def verify(
    data_dir: Annotated[str | None, typer.Option(help="The data directory of a node, running or not.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything in a data directory and check it: schema, gaps, order, checksums, sizes.

    Example: stream-node verify --data-dir ./data
    """
    from rich.console import Console
    from rich.progress import Progress

    from storage.database import Database
    from storage.verify import verify as verify_session
    from stream_node.config import load_config

    config = load_config({"data_dir": data_dir})
    database = Database.open(Path(config.data_dir), read_only=True)
    try:
        session = database.read_session()
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("verifying", total=None)
            report = verify_session(session, lambda streams, messages: progress.update(task, completed=messages))
        session.close()
    finally:
        database.close()
    ok = report.sound
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "ok": ok,
                    "streams": report.streams,
                    "messages": report.messages,
                    "bytes": report.size_bytes,
                    "problems": list(report.problems),
                }
            )
        )
    else:
        for problem in report.problems:
            typer.echo(problem)
        typer.echo(
            f"{report.streams:,} streams, {report.messages:,} messages, {report.size_bytes:,} bytes: "
            + ("all as it should be" if ok else f"{report.problem_count:,} problems")
        )
    if not ok:
        raise SystemExit(1)


def demo(
    input_dir: Annotated[Path | None, typer.Option(help="Where the text to push comes from.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Start two nodes, push real text through them, kill things, and prove that nothing confirmed is lost.

    Example: stream-node demo
    """
    from stream_node.demo.run import run_demo

    run_demo(input_dir, as_json=as_json)


def bench(
    what: Annotated[str, typer.Argument(help="push, latency, pull, codec or all.")] = "all",
    messages: Annotated[int, typer.Option(min=1, help="Messages of a measurement.")] = 200_000,
    size: Annotated[int, typer.Option(min=0, help="Bytes of a message.")] = 100,
    ceiling: Annotated[Path | None, typer.Option(help="A prototype to run in turn with us, for the ratio.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine: durable pushes, latency, pulls, codec. Every push is fsynced before its confirm.

    Example: stream-node bench push --messages 100000
    """
    from stream_node.bench.run import run_bench

    run_bench(what, messages=messages, size_bytes=size, ceiling=ceiling, as_json=as_json)
