"""The commands `stream-node export …`: export the messages of a node to a table, in a separate process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from stream_node.cli.exports.export_options import (
    NICE,
    PLAIN_STORE,
    ClientOption,
    ExportOptions,
    FolderArgument,
    KeepOption,
    LogLevelOption,
    NiceOption,
    StoreOptionOption,
    StoreOptions,
)
from stream_node.cli.options import ContextOption, NodeOption, NodeOptions
from stream_node.cli.output import columns, say, say_each
from stream_node.cli.progress import progress_shown
from stream_node.cli.request_options import proof_for
from stream_node.cli.values import CommandFailed, parse_duration, time_text

T = TypeVar("T")
HEAD = ("run", "state", "started", "rows", "MB of data", "MB of files", "files", "lost", "error")
NUMBERS = frozenset({0, 3, 4, 5, 6, 7})
"""The columns that contain numbers, by their positions in HEAD, counted from 0."""
SPARK_PARTS = {"pyspark", "pyarrow", "py4j", "aiosqlite", "greenlet", "adbc_driver_sqlite"}
"""The modules that the optional extra `spark` installs."""


def run(export: ExportOptions, nice: NiceOption = NICE, log_level: LogLevelOption = "warning") -> None:
    """Export all messages that are new since the last run, then exit. The command may be killed and repeated at
    any time.

    The new messages are published in steps. After each step, readers of the table see its messages. A stream that has
    lost messages or cannot be read is left out and reported, and the exit code is 1.

    Example: stream-node export run ./lake --stream orders

    For at most ten minutes: stream-node export run ./lake --seconds-max 600

    A cluster: stream-node export run /shared/lake --master spark://10.0.0.5:7077
    """
    with _errors_told(), _progress() as on_progress:
        from spark_export.exporter.errors import StreamsLeftOut
        from spark_export.exporter.report import outcome_lines, outcome_row
        from spark_export.exporter.runs.job import ExportSettings, open_exporter
        from spark_export.exporter.runs.run import ExportOutcome
        from spark_export.exporter.runs.step import log_step

        _configure_logs(log_level)
        os.nice(nice)
        chosen = ExportSettings(**export.settings())

        async def main() -> ExportOutcome:
            async with open_exporter(chosen, on_progress=on_progress) as exporter:
                return await exporter.run(on_step=log_step)

        # A run that left streams out has exported the others: its report comes before the failure.
        failure: StreamsLeftOut | None = None
        try:
            outcome = _run_until_told(main())
        except StreamsLeftOut as error:
            outcome, failure = error.outcome, error
        row, lines = outcome_row(outcome, chosen.folder), list(outcome_lines(outcome, chosen.folder))
    say(row, lines)
    if failure is not None:
        raise CommandFailed(str(failure))


def daemon(
    export: ExportOptions,
    every: Annotated[
        str,
        typer.Option(metavar="TIME", help="The time from the start of one run to the start of the next: 60s, 15m, 1h."),
    ] = "60s",
    metrics_file: Annotated[
        Path | None,
        typer.Option(help="A file for counters in the text format of Prometheus, for a textfile collector."),
    ] = None,
    compact_files: Annotated[
        int,
        typer.Option(
            min=0, help="Compact the files of one stream and date when this many of them are small; 0 for never."
        ),
    ] = 16,
    keep: KeepOption = None,
    nice: NiceOption = NICE,
    log_level: LogLevelOption = "info",
) -> None:
    """Export new messages at intervals, until SIGTERM or Ctrl-C. If Spark is needed, it starts once.

    If a run is still in progress when the next one is due, the next one is skipped. A run that fails is logged and
    repeated. Between runs, the daemon compacts the table and removes files that readers no longer need.

    Example: stream-node export daemon ./lake --every 60s --metrics-file ./export.prom
    """
    with _errors_told():
        from spark_export.exporter.report import outcome_row
        from spark_export.exporter.runs.daemon import run_daemon
        from spark_export.exporter.runs.job import ExportSettings, open_kept_exporter
        from spark_export.exporter.runs.run import ExportOutcome

        every_s = max(1, parse_duration(every))
        _configure_logs(log_level)
        os.nice(nice)
        chosen = ExportSettings(**export.settings(), keep_s=None if keep is None else parse_duration(keep))

        def told(outcome: ExportOutcome) -> None:
            say_each([outcome_row(outcome, chosen.folder)], ())
            sys.stdout.flush()

        async def main() -> None:
            async with open_kept_exporter(chosen, files_min=compact_files) as (exporter, upkeep):
                await run_daemon(exporter, every_s=every_s, metrics_file=metrics_file, on_outcome=told, upkeep=upkeep)

        _run(main())


def history(
    folder: FolderArgument,
    last: Annotated[int, typer.Option(min=1, help="The number of runs.")] = 20,
    store: StoreOptions = PLAIN_STORE,
) -> None:
    """List the latest runs of an export, newest first.

    Example: stream-node export history ./lake --last 5
    """
    with _errors_told():
        from spark_export.exporter.model import Run
        from spark_export.exporter.report import run_row
        from spark_export.exporter.runs.job import open_for_reading

        async def main() -> list[Run]:
            async with open_for_reading(store.address_of(folder)) as (_, opened):
                return await opened.load_runs(last)

        rows = [run_row(each) for each in _run(main())]
    say_each(rows, columns([HEAD, *map(_cells, rows)], NUMBERS) if rows else "no run yet")


def verify(
    folder: FolderArgument,
    quick: Annotated[bool, typer.Option(help="Do not compute the checksums of the files.")] = False,
    store: StoreOptions = PLAIN_STORE,
) -> None:
    """Check that the table has every exported message exactly once. If it does not, the exit code is 1.

    The check reads the ledger and the files of the export, and needs no node.

    Example: stream-node export verify ./lake
    """
    with _errors_told(), progress_shown() as progress:
        from spark_export.exporter import verify as proof
        from spark_export.exporter.report import verdict_lines, verdict_row
        from spark_export.exporter.runs.job import open_for_reading

        async def main() -> proof.VerificationResult:
            async with open_for_reading(store.address_of(folder)) as (layout, opened):
                return await proof.verify(
                    layout, opened, checksums=not quick, on_file=lambda done, total: progress("verifying", done, total)
                )

        verdict = _run(main())
        row, lines = verdict_row(verdict), list(verdict_lines(verdict))
    say(row, lines)
    if not verdict.sound:
        raise typer.Exit(1)


def compact(
    folder: FolderArgument,
    keep: KeepOption = None,
    log_level: LogLevelOption = "warning",
    store: StoreOptions = PLAIN_STORE,
) -> None:
    """Merge the small files of an export into large ones, and remove replaced files.

    Readers of the table see the change all at once. Stop the export daemon first, or let the daemon compact the table.

    Example: stream-node export compact ./lake
    """
    with _errors_told():
        from spark_export.exporter.report import compaction_line, compaction_row
        from spark_export.exporter.runs.job import open_compactor
        from spark_export.exporter.tables.compact import Compaction

        keep_s = None if keep is None else parse_duration(keep)
        _configure_logs(log_level)

        async def main() -> Compaction:
            async with open_compactor(store.address_of(folder), keep_s=keep_s) as compactor:
                return await compactor.run()

        done = _run(main())
        row, line = compaction_row(done), compaction_line(done)
    say(row, line)


def repair(
    folder: FolderArgument,
    node: NodeOption = None,
    context: ContextOption = None,
    accept_lost: Annotated[
        bool, typer.Option(help="Give up rows that the node no longer has. The ledger lists these rows.")
    ] = False,
    keep: KeepOption = None,
    log_level: LogLevelOption = "warning",
    store: StoreOptions = PLAIN_STORE,
) -> None:
    """Replace damaged and lost files of an export. Their rows are fetched again from the node. Stop the daemon first.

    The command reads every file of the export to find damage. It refuses a table of Delta or Iceberg that another
    program has changed, since deleted rows would come back. Readers of the table see all replacements at once.

    Example: stream-node export repair ./lake
    """
    with _errors_told(), progress_shown() as progress:
        from spark_export.exporter.repair import Repair
        from spark_export.exporter.report import repair_lines, repair_row
        from spark_export.exporter.runs.job import open_repairer

        keep_s = None if keep is None else parse_duration(keep)
        _configure_logs(log_level)
        where, target = store.address_of(folder), NodeOptions(node, context).target()

        async def main() -> Repair:
            tls, token = proof_for(target)
            async with open_repairer(
                where, target.address, keep_s=keep_s, accept_lost=accept_lost, tls=tls, token=token
            ) as repairer:
                return await repairer.run(lambda done, total: progress("checking", done, total))

        done = _run(main())
        row, lines = repair_row(done), list(repair_lines(done))
    say(row, lines)


def adopt(
    folder: FolderArgument,
    node: NodeOption = None,
    context: ContextOption = None,
    client: ClientOption = None,
    store: StoreOptions = PLAIN_STORE,
) -> None:
    """Give the table of an export a consumer of its own at the node, which continues where the table ends.

    Use this command for a copy of an export's folder, and for two folders that save their positions under the same
    name. A run that notices either case fails with an error that names this command.

    Example: stream-node export adopt ./copy-of-lake
    """
    with _errors_told():
        from spark_export.exporter.runs.job import adopt_table

        target = NodeOptions(node, context).target()
        where, (tls, token) = store.address_of(folder), proof_for(target)
        name = _run(adopt_table(where, target.address, client, tls, token))
    say({"folder": str(folder), "client": name}, f"the table saves its positions under the consumer {name}")


def files(folder: FolderArgument, store_option: StoreOptionOption = None) -> None:
    """List the files that make up a plain Parquet table at this moment. Any reader of Parquet can read them.

    Example: stream-node export files s3://bucket/lake
    """
    with _errors_told():
        from spark_export.tables.table_listing import list_table_files

        rows = list_table_files(StoreOptions(store_option).address_of(folder))
    say_each(rows, [each["path"] for each in rows])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = (f"{row['data_bytes'] / 1e6:,.1f}", f"{row['file_bytes'] / 1e6:,.1f}")
    started = time_text(row["started_us"])[:19] + "Z"
    counts = (f"{row['files']:,}", f"{row['lost']:,}")
    return (str(row["run"]), row["state"], started, f"{row['rows']:,}", *sizes, *counts, row["error"] or "")


def _run(main: Coroutine[Any, Any, T]) -> T:
    import asyncio

    return asyncio.run(main)


def _run_until_told(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine until it ends or SIGTERM cancels it, and returns its result.
    After SIGTERM the coroutine can clean up; then this function raises typer.Exit with 128 plus the signal's number."""
    import asyncio

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


def _configure_logs(level: str) -> None:
    from stream_node.cli.values import UsageError
    from stream_node.node.logs import LEVELS, configure_logs

    if level not in LEVELS:
        raise UsageError(f"--log-level {level}: one of {', '.join(LEVELS)}")
    configure_logs(level)


@contextmanager
def _progress() -> Iterator[Callable[[Any], None]]:
    with progress_shown() as shown:

        def told(progress: Any) -> None:
            done, planned = progress.data_bytes / 1e6, progress.data_bytes_planned / 1e6
            step = "" if progress.step == 1 else f" step {progress.step:,}"
            shown(f"exporting{step}, {done:,.1f} of {planned:,.1f} MB", progress.rows, progress.rows_planned)

        yield told


@contextmanager
def _errors_told() -> Iterator[None]:
    """Turns errors of the exporter, and a missing extra `spark`, into CommandFailed."""
    from spark_export.errors import SourceError
    from spark_export.exporter.errors import ExportError

    try:
        yield
    except (ExportError, SourceError) as error:
        raise CommandFailed(str(error)) from error
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SPARK_PARTS:
            raise
        raise CommandFailed(
            f"an export needs the extra `spark`, and {error.name} is not installed in {sys.prefix}: "
            f"{os.path.relpath(sys.executable)} -m pip install 'stream-node[spark]', or -e '.[spark]' in a checkout"
        ) from error
