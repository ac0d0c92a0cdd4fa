"""The commands `stream-node pipeline …`: silver and gold tables of an export, made by PySpark in a separate process."""

from __future__ import annotations

import signal
import sys
import threading
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from stream_node.cli.exports.export import begin
from stream_node.cli.exports.export_options import (
    EMBEDDED,
    NICE,
    PLAIN_TABLE,
    ConfOption,
    FolderArgument,
    LogLevelOption,
    NiceOption,
    TableOptions,
    pairs,
)
from stream_node.cli.output import say, say_each
from stream_node.cli.values import UsageError, parse_duration

STEP_ROWS = 1_000_000


class PipelineOptions(NamedTuple):
    folder: FolderArgument
    out: Annotated[Path, typer.Argument(), "OUT", "The folder of the silver and gold tables."]
    cardinal: Annotated[
        str | None,
        "REGEX",
        "Streams whose whole name matches are topics of Cardinal Streams; the first group names the chain.",
    ] = None
    start: Annotated[
        list[str] | None,
        "[CHAIN=]HASH",
        "A block on the canonical chain, in hex; with CHAIN= if the expression has a group; once for each chain.",
    ] = None
    step_rows: Annotated[int, typer.Option(min=1), "About how many new messages one step takes."] = STEP_ROWS
    master: Annotated[str, "MASTER", "The master of Spark: local[*,4], spark://HOST:PORT, yarn, k8s://…"] = EMBEDDED
    conf: ConfOption = None
    table: TableOptions = PLAIN_TABLE

    def pipeline(self) -> Any:
        """Returns the `spark_export.pipeline.run.Pipeline`. Raises UsageError."""
        from spark_export.pipeline.bronze import BronzeTable
        from spark_export.pipeline.run import Pipeline
        from spark_export.pipeline.silver_cardinal import Topics
        from spark_export.pipeline.step import Settings

        try:
            topics = None if self.cardinal is None else Topics(self.cardinal)
        except ValueError as error:
            raise UsageError(f"--cardinal {error}") from error
        settings, log = Settings(topics, read_starts(self.start or [], topics)), self.table.open(self.folder)
        options = log.format, self.table.store_options(self.folder), self.table.choice()
        return Pipeline(BronzeTable(str(self.folder), *options), self.out, settings, self.step_rows)

    def session(self) -> Any:
        from spark_export.session import open_session

        return open_session(self.master, name="stream-node pipeline", config=pairs(self.conf))


def run(
    pipeline: PipelineOptions,
    rebuild: Annotated[bool, "Build all tables anew."] = False,
    nice: NiceOption = NICE,
    log_level: LogLevelOption = "warning",
) -> None:
    """Bring the silver and gold tables of an export up to date, then exit. The command may be killed and repeated at
    any time.

    A run takes the messages that were exported since the last run, and corrects rows of earlier runs, as after a reorg.

    Example: stream-node pipeline run ./lake ./tables --cardinal '(evm-[0-9]+)-.*'
    """
    from spark_export.session import close_session

    begin(log_level, nice)
    chosen = pipeline.pipeline()
    # The start of Spark takes seconds, so mistakes are reported before it.
    chosen.find_state(rebuild=rebuild)
    session = pipeline.session()
    try:
        report = chosen.run(session, rebuild=rebuild)
    finally:
        close_session(session)
    for note in report.notes:
        sys.stderr.write(f"warning: {note}\n")
    say(*_report(pipeline.out, report))


def _report(out: Path, report: Any) -> tuple[dict[str, Any], str]:
    row = {"out": str(out), "rows": report.rows, "steps": report.steps, "rebuilt": report.rebuilt}
    return {**row, "notes": list(report.notes)}, f"{report.rows:,} new messages in {report.steps:,} steps"


def daemon(
    pipeline: PipelineOptions,
    every: Annotated[str, "TIME", "How often new messages are looked for: 1s, 60s."] = "10s",
    nice: NiceOption = NICE,
    log_level: LogLevelOption = "info",
) -> None:
    """Keep the silver and gold tables of an export up to date, until SIGTERM or Ctrl-C.

    A streaming query of Spark takes what the export has added. After a failure, another query goes on.

    Example: stream-node pipeline daemon ./lake ./tables --every 10s
    """
    begin(log_level, nice)
    chosen, stop = pipeline.pipeline(), threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, frame: stop.set())
    every_s = max(1, parse_duration(every))
    # Spark calls `told` in a thread of its own, which does not know of --json.
    context = copy_context()

    def told(report: Any) -> None:
        row, line = _report(pipeline.out, report)
        context.run(say_each, [row], [line])
        sys.stdout.flush()

    chosen.run_daemon(pipeline.session, every_s=every_s, stop=stop, on_report=told)


def read_starts(given: list[str], topics: Any) -> dict[str, bytes]:
    """Returns the start block of each chain from the values CHAIN=HASH, or HASH for one chain. Raises UsageError."""
    found: dict[str, bytes] = {}
    for text in given:
        if topics is None:
            raise UsageError(f"--start {text}: only --cardinal has chains; give it too")
        chain, equals, digits = text.rpartition("=")
        if topics.has_group != bool(equals):
            form = "CHAIN=HASH, since the expression names several chains" if topics.has_group else "HASH"
            raise UsageError(f"--start {text}: write it as {form}")
        chain = chain if equals else topics.pattern
        if chain in found:
            raise UsageError(f"--start {text}: the chain {chain} has a start block already")
        try:
            found[chain] = bytes.fromhex(digits.removeprefix("0x"))
        except ValueError:
            found[chain] = b""
        if len(found[chain]) != 32:
            raise UsageError(f"--start {text}: the hash of a block has 64 hex digits")
    return found
