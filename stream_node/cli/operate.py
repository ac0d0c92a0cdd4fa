"""`stream-node verify` and `demo`, and the register of the other commands that an operator runs beside a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli import bench, care, export, repair, settings
from stream_node.cli.options import DataDirOption, JsonOption
from stream_node.cli.output import counted, say
from stream_node.cli.progress import progress_shown

STREAMS_LISTED = 2**31
"""As many as there are: the report of a verification names all streams."""


def register(app: typer.Typer) -> None:
    """Register these commands, and the commands of an operator that have modules of their own."""
    app.command()(verify)
    repair.register(app)
    care.register(app)
    app.command()(demo)
    bench.register(app)
    export.register(app)
    settings.register(app)


def verify(data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Read everything in a data directory and check it: schema, gaps, order, checksums, sizes.

    Example: stream-node verify --data-dir ./data
    """
    from storage.database import Database
    from storage.verify import verify as verify_session
    from stream_node.config_sources import load_config

    config = load_config({"data_dir": data_dir})
    session = Database.open(Path(config.data_dir), read_only=True).read_session()
    try:
        with progress_shown() as progress:
            total = sum(each.next_index - each.first_index for each in session.log.list_streams(limit=STREAMS_LISTED))
            result = verify_session(session, lambda _, messages: progress("verifying", messages, total))
    finally:
        session.close()
    report = {
        "ok": result.sound,
        "streams": result.streams,
        "messages": result.messages,
        "bytes": result.size_bytes,
        "problems": list(result.problems),
        "problem_count": result.problem_count,
    }
    held = ", ".join(
        counted(number, noun)
        for number, noun in ((result.streams, "stream"), (result.messages, "message"), (result.size_bytes, "byte"))
    )
    verdict = "all as it should be" if result.sound else counted(result.problem_count, "problem")
    say(as_json, report, [*result.problems, f"{held}: {verdict}"])
    if not result.sound:
        raise typer.Exit(1)


def demo(
    input_dir: Annotated[Path | None, typer.Option(help="Where the text to push comes from.")] = None,
    with_export: Annotated[
        bool, typer.Option("--export/--no-export", help="Export it with Spark at the end, where that is installed.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Start two nodes, push real text through them, kill things, and prove that nothing confirmed is lost.

    Example: stream-node demo
    """
    from stream_node.demo.run import run_demo

    run_demo(input_dir, with_export=with_export, as_json=as_json)
