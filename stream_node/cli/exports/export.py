"""The commands `stream-node export …`: export the messages of a node to a table, in a separate process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_node.cli.exports.export_options import (
    NICE,
    PLAIN_TABLE,
    ExportOptions,
    FolderArgument,
    KeepOption,
    LogLevelOption,
    NiceOption,
    SparkOptions,
    TableOptions,
)
from stream_node.cli.options import ContextOption, NodeOption, NodeOptions, proof_for
from stream_node.cli.output import ProgressLine, columns, counted, say, say_each
from stream_node.cli.values import UsageError, parse_duration, time_text

HEAD = ("run", "state", "started", "rows", "MB of data", "MB of files", "files", "lost", "error")
NUMBERS = frozenset({0, 3, 4, 5, 6, 7})


def run(export: ExportOptions, nice: NiceOption = NICE, log_level: LogLevelOption = "warning") -> None:
    """Export all messages that are new since the last run, then exit. The command may be killed and repeated at
    any time.

    The new messages are published in steps. After each step, readers of the table see its messages. A stream that has
    lost messages or cannot be read is left out and reported, and the exit code is 1.

    Example: stream-node export run ./lake --stream orders

    For at most ten minutes: stream-node export run ./lake --seconds-max 600
    """
    with ProgressLine() as shown:
        from spark_export.exporter.run import Exporter, log_step
        from spark_export.exporter.scheduled import stop_signals
        from spark_export.tables.errors import ExportStopped, StreamsLeftOut

        begin(log_level, nice)
        chosen = export.settings()

        def on_progress(progress: Any) -> None:
            done, planned = progress.data_bytes / 1e6, progress.data_bytes_planned / 1e6
            step = "" if progress.step == 1 else f" step {progress.step:,}"
            shown.count(f"exporting{step}, {done:,.1f} of {planned:,.1f} MB", progress.rows, progress.rows_planned)

        # A run that left streams out has exported the others: its report comes before the failure.
        failure: StreamsLeftOut | None = None
        stop, received = threading.Event(), list[int]()
        with stop_signals(stop, received), Exporter(chosen, on_progress, stop) as exporter:
            try:
                outcome = exporter.run(on_step=log_step)
            except StreamsLeftOut as error:
                outcome, failure = error.outcome, error
            except ExportStopped:
                raise typer.Exit(128 + received[0]) from None
        row, lines = _outcome_row(outcome, chosen), [*_outcome_lines(outcome, chosen.open_log().address)]
    say(row, lines)
    if failure is not None:
        raise failure


def daemon(
    export: ExportOptions,
    spark: SparkOptions,
    every: Annotated[str, "TIME", "The time from the start of one run to the start of the next: 60s, 15m, 1h."] = "60s",
    metrics_file: Annotated[
        Path | None, "A file for counters in the text format of Prometheus, for a textfile collector."
    ] = None,
    compact_files: Annotated[
        int | None,
        typer.Option(min=0),
        "Compact the files of one stream and date when this many of them are small; 0 for never. Without it: "
        "16; a table that another program made is compacted and cleaned only with this option or --keep.",
    ] = None,
    keep: KeepOption = None,
    nice: NiceOption = NICE,
    log_level: LogLevelOption = "info",
) -> None:
    """Export new messages at intervals, until SIGTERM or Ctrl-C. With Spark, the daemon is a PySpark application.

    If a run is still in progress when the next one is due, the next one is skipped. A run that fails is logged and
    repeated. Between runs, the daemon compacts the table and removes files that readers no longer need.

    Example: stream-node export daemon ./lake --every 60s --metrics-file ./export.prom
    """
    from spark_export.exporter.daemon import run_daemon
    from spark_export.exporter.upkeep import TableUpkeep

    every_s = max(1, parse_duration(every))
    begin(log_level, nice)
    chosen = export.settings()

    def told(outcome: Any) -> None:
        say_each([_outcome_row(outcome, chosen)], ())
        sys.stdout.flush()

    with spark.open_exporter(chosen) as exporter:
        upkeep = TableUpkeep(chosen.open_log(), files_min=compact_files, keep_s=keep)
        run_daemon(exporter, every_s=every_s, metrics_file=metrics_file, on_outcome=told, upkeep=upkeep)


def history(
    folder: FolderArgument,
    last: Annotated[int, typer.Option(min=1), "The number of runs."] = 20,
    table: TableOptions = PLAIN_TABLE,
) -> None:
    """List the latest runs of an export, newest first.

    Example: stream-node export history ./lake --last 5
    """
    rows = [asdict(each) for each in table.history_of(folder).load_runs(last)]
    if not rows:
        # A path without an export is an error here, because it may be misspelt.
        table.open(folder)
    say_each(rows, columns([HEAD, *map(_cells, rows)], NUMBERS) if rows else "no run yet")


def verify(
    folder: FolderArgument,
    node: NodeOption = None,
    context: ContextOption = None,
    contents: Annotated[bool, "Also compare the rows with the messages that the node has."] = False,
    quick: Annotated[bool, "Do not read all bytes of the files."] = False,
    table: TableOptions = PLAIN_TABLE,
) -> None:
    """Check that the table has every exported message exactly once. If it does not, the exit code is 1.

    Rows that other programs have removed are reported, and are no problem.

    Example: stream-node export verify ./lake --contents
    """
    with ProgressLine() as progress:
        from spark_export.exporter.node_side import NodeSide, Selection
        from spark_export.exporter.verify import verify as check

        log, ends, read = table.open(folder), [], None
        if contents:
            target = NodeOptions(node, context).target()
            side = NodeSide(target.address, *proof_for(target))
            ends, read = side.list_ends(Selection()), side.read
        verdict = check(log, ends=ends, read=read, checksums=not quick, on_file=partial(progress.count, "verifying"))
        table.history_of(folder).add_record("verify", asdict(verdict))
    say({"ok": verdict.sound, **asdict(verdict)}, [*verdict.problems, *verdict.notes, _judgement(verdict)])
    if not verdict.sound:
        raise typer.Exit(1)


def compact(
    folder: FolderArgument,
    keep: KeepOption = None,
    log_level: LogLevelOption = "warning",
    table: TableOptions = PLAIN_TABLE,
) -> None:
    """Merge the small files of an export into large ones, and remove replaced files.

    Readers of the table see the change all at once. Exports can go on meanwhile.

    Example: stream-node export compact ./lake
    """
    from spark_export.exporter.upkeep import TableUpkeep

    begin(log_level)
    done, merged = TableUpkeep(table.open(folder), files_min=2, keep_s=keep).run(), "nothing to merge"
    if done.merged:
        merged = f"{counted(done.merged, 'file')} merged; the table has {counted(done.files_after, 'file')}"
    say(asdict(done), f"{merged}; {done.expired:,} old files and versions removed")


def forget(
    folder: FolderArgument,
    stream: Annotated[str, "NAME", "The stream whose messages are erased."],
    key: Annotated[str | None, "TEXT", "Erase only the messages with this key. Without it, all."] = None,
    key_hex: Annotated[str | None, "HEX", "The key as hexadecimal digits."] = None,
    keep: Annotated[
        int | None,
        typer.Option(parser=parse_duration),
        "TIME",
        "How long older versions of the table, which still have the rows, are kept for readers. Without it: "
        "as long as properties of the table say, else not at all.",
    ] = None,
    log_level: LogLevelOption = "warning",
    table: TableOptions = PLAIN_TABLE,
) -> None:
    """Erase the messages of a stream, or of one key, from the table, and never export them again.

    This concerns all messages that the node has stored until now, also those that are not exported yet. The command
    also removes the files that older versions of the table need, so that these versions can no longer be read. The
    table keeps the SHA-256 of the key.

    Example: stream-node export forget ./lake --stream orders --key customer-17
    """
    from spark_export.exporter.upkeep import forget as erase

    if key is not None and key_hex is not None:
        raise UsageError("--key and --key-hex name the same thing; say one of them")
    try:
        wanted = bytes.fromhex(key_hex) if key_hex is not None else None if key is None else key.encode()
    except ValueError as error:
        raise UsageError(f"--key-hex {key_hex}: {error}") from error
    begin(log_level)
    row = erase(table.open(folder), table.history_of(folder), stream, wanted, keep_s=keep)
    lines = [f"{row['rows']:,} rows erased; {row['expired']:,} old files and versions removed"]
    if row["kept_by"]:
        lines.append(f"older versions still have the rows, as the table has {row['kept_by']}; --keep 0s removes them")
    if row["still_in"]:
        lines.append(f"the rows are still in {', '.join(row['still_in'])}: drop these, and forget once more")
    say(row, lines)


def migrate(
    folder: FolderArgument,
    ledger: Annotated[Path | None, "FILE", "The ledger, if it is not ledger.sqlite in the folder."] = None,
    log_level: LogLevelOption = "warning",
    table: TableOptions = PLAIN_TABLE,
) -> None:
    """Take over an export that an earlier version wrote, once. Its rows stay, and later runs continue behind them.

    The command compares the rows with the ledger of the earlier version first, and changes nothing where they differ.

    Example: stream-node export migrate ./lake
    """
    from spark_export.exporter.migrate import migrate as take_over

    begin(log_level)
    row = take_over(folder, table.store_options(folder), table.choice(), table.history_of(folder), ledger)
    say(row, f"{row['rows']:,} rows of {row['partitions']:,} partitions taken over; run the export as before")


def files(folder: FolderArgument, table: TableOptions = PLAIN_TABLE) -> None:
    """List the files that make up the table at this moment. Any reader of Parquet can read them.

    Example: stream-node export files s3://bucket/lake
    """
    from spark_export.exporter.job import plain_path

    found = table.open(folder).list_files()
    rows = [{"address": plain_path(each.address), "file_bytes": each.file_bytes, "rows": each.rows} for each in found]
    say_each(rows, [each["address"] for each in rows])


def _outcome_row(outcome: Any, settings: Any) -> dict[str, Any]:
    """Returns a `spark_export.exporter.run.ExportOutcome` as a JSON object."""
    row = {"folder": str(settings.place()), "run": outcome.run_id, **asdict(outcome)}
    del row["run_id"]
    return row | {"seconds": round(outcome.seconds, 6)}


def _outcome_lines(outcome: Any, table: str) -> Iterator[str]:
    if outcome.run_id is None:
        is_left = "nothing is exported" if outcome.rows_left else "nothing new"
        yield f"{'nothing else is new' if outcome.left_out else is_left} ({outcome.seconds:.2f} s)"
    else:
        steps = "" if outcome.steps == 1 else f", the last of {outcome.steps:,} steps"
        yield (
            f"run {outcome.run_id}{steps}: {counted(outcome.rows, 'row')} of "
            f"{counted(outcome.partitions, 'partition')}, {outcome.data_bytes / 1e6:,.1f} MB in "
            f"{counted(outcome.files, 'file')} of {outcome.file_bytes / 1e6:,.1f} MB ({outcome.seconds:.2f} s)"
        )
    if outcome.lost:
        yield f"{counted(outcome.lost, 'message')} had been deleted by retention before they could be exported"
    if outcome.rows_left:
        left = f"{counted(outcome.rows_left, 'row')}, about {outcome.data_bytes_left / 1e6:,.1f} MB"
        yield f"the time is over, and left for the next run are {left}"
    if outcome.run_id is not None:
        yield f"the table is {table}"


def _judgement(verdict: Any) -> str:
    parts = (counted(verdict.runs, "run"), counted(verdict.rows, "row"), counted(verdict.files, "file"))
    said = "each row once" if verdict.sound else counted(verdict.problem_count, "problem")
    said += f"; {counted(verdict.removed, 'exported row')} removed by others" if verdict.removed else ""
    said += f"; {counted(verdict.lost, 'message')} lost to retention before the export" if verdict.lost else ""
    said += f"; {counted(verdict.compared, 'row')} compared with the node" if verdict.compared is not None else ""
    return f"{', '.join(parts)}: {said}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    run = "" if row["run"] is None else str(row["run"])
    sizes = (f"{row[part] / 1e6:,.1f}" for part in ("data_bytes", "file_bytes"))
    started, rows = time_text(row["started_us"])[:19] + "Z", f"{row['rows']:,}"
    return (run, row["state"], started, rows, *sizes, f"{row['files']:,}", f"{row['lost']:,}", row["error"] or "")


def begin(log_level: str, nice: int = 0) -> None:
    """Sets the log level and the niceness of this process. Raises UsageError."""
    from stream_node.node.logs import LEVELS, configure_logs

    if log_level not in LEVELS:
        raise UsageError(f"--log-level {log_level}: one of {', '.join(LEVELS)}")
    configure_logs(log_level)
    os.nice(nice)
