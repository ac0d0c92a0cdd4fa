"""The commands `stream-node verify`, `backup`, `restore` and `doctor`, which check, copy and restore a
data directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_node.cli.options import ConfigOption, DataDirOption, DryRunOption, JsonOption, ListenOption
from stream_node.cli.output import columns, counted, say
from stream_node.cli.progress import progress_shown

STREAMS_LISTED = 2**31
"""A number above the number of streams of any node. The command `verify` lists all streams, because its progress needs
the total number of messages."""


def register(app: typer.Typer) -> None:
    for command in (verify, backup, restore, doctor):
        app.command()(command)


def backup(
    target: Annotated[Path, typer.Argument(help="A new or empty folder for the backup.")],
    data_dir: DataDirOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every message of the copy.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy the database of a running or stopped node, and sync the copy to disk.

    Example: stream-node backup /backups/monday --data-dir ./data --verify
    """
    from storage.sqlite.backup import back_up
    from stream_node.config_sources import load_config

    config = load_config({"data_dir": data_dir})
    started_s = time.monotonic()
    with progress_shown() as progress:
        manifest = back_up(
            Path(config.data_dir), target, now_us=time.time_ns() // 1000, check=verify, progress=progress
        )
    seconds = time.monotonic() - started_s
    report = {
        "backup": str(target),
        "data_dir": config.data_dir,
        "streams": manifest.streams,
        "messages": manifest.messages,
        "bytes": manifest.data_bytes,
        "database_bytes": manifest.database_bytes,
        "sha256": manifest.sha256,
        "created_us": manifest.created_us,
        "verified": verify,
        "seconds": round(seconds, 6),
    }
    held = f"{counted(manifest.streams, 'stream')}, {counted(manifest.messages, 'message')}"
    say(as_json, report, f"{held} in {target}{', verified' if verify else ''} ({seconds:.2f} s)")


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that `backup` made.")],
    data_dir: Annotated[
        str | None, typer.Option(help="The data directory to restore to: new or empty, unless --over is given.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every message of the backup first.")] = False,
    over: Annotated[bool, typer.Option("--over", help="Replace the database of a node that is stopped.")] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into a data directory that a node can serve. The SHA-256 of the backup is always checked.

    Messages and positions that were stored after the backup are lost. If the position of a consumer is after the end of
    its stream, the consumer gets an error that says so. Leases of shared streams start again, with fences (lease
    numbers) above all earlier ones.

    Example: stream-node restore /backups/monday --data-dir ./data --verify

    See what would be lost: stream-node restore /backups/monday --data-dir ./data --over --dry-run
    """
    from stream_node.config_sources import load_config
    from stream_node.restore import restore as put_back

    config = load_config({"data_dir": data_dir})
    with progress_shown() as progress:
        manifest, present = put_back(
            source, Path(config.data_dir), check=verify, over=over, dry_run=dry_run, progress=progress
        )
    report = {
        "backup": str(source),
        "data_dir": config.data_dir,
        "streams": manifest.streams,
        "messages": manifest.messages,
        "bytes": manifest.data_bytes,
        "created_us": manifest.created_us,
        "verified": verify,
        "dry_run": dry_run,
        "replaced": present.found,
        "replaced_streams": present.streams,
        "replaced_messages": present.messages,
    }
    held = f"{counted(manifest.streams, 'stream')}, {counted(manifest.messages, 'message')}"
    text = f"{held} {'would be restored' if dry_run else 'restored'} to {config.data_dir}"
    if verify:
        text += ", verified"
    if present.found:
        what = "a database that cannot be read"
        if present.streams is not None and present.messages is not None:
            what = f"{counted(present.streams, 'stream')}, {counted(present.messages, 'message')}"
        text += f", in place of {what}"
    say(as_json, report, text)


def verify(data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """Read and check everything in the database: schema, gaps, order, checksums and sizes.

    Example: stream-node verify --data-dir ./data
    """
    from storage.sqlite.database import Database
    from storage.sqlite.verify import verify as verify_session
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


def doctor(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether this machine and these settings are suitable for a node. The exit code is 1 if something is wrong.

    The checks are: SQLite and its known bugs, the file system, the duration of a sync, free disk space, the database
    file or the PostgreSQL server, the clock, the limit on open files, the addresses, and the files of TLS, rules,
    tokens and identities.

    Example: stream-node doctor --data-dir ./data --json
    """
    import msgspec

    from stream_node.doctor import examine
    from stream_node.setting_origins import load_effective

    in_force, settings = load_effective({"data_dir": data_dir, "listen": listen}, file=config)
    findings = examine(in_force)
    by_status = {status: sum(each.status == status for each in findings) for status in ("wrong", "warning")}
    report: dict[str, Any] = {
        "ok": not by_status["wrong"],
        "findings": msgspec.to_builtins(findings),
        "settings": msgspec.to_builtins(settings),
    }
    lines = list(columns([(each.status, each.check, each.text) for each in findings]))
    changed = [f"{each.name}={each.value} ({each.where})" for each in settings if each.origin != "default"]
    lines.append(f"settings that are not defaults: {', '.join(changed) or 'none'}")
    lines.append(f"{by_status['wrong'] or 'nothing'} wrong, {counted(by_status['warning'], 'warning')}")
    say(as_json, report, lines)
    if by_status["wrong"]:
        raise typer.Exit(1)
