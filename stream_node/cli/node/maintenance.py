"""The commands `stream-node verify`, `backup`, `restore`, `doctor` and `repair`, which care for a data directory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.options import RUNS, ConfigOption, DataDirOption, DryRunOption, ListenOption, YesOption
from stream_node.cli.output import AS_JSON, ProgressLine, columns, confirm, counted, say
from stream_node.cli.values import UsageError, printable

if TYPE_CHECKING or RUNS:
    import msgspec

    from stream_node.care.doctor import examine
    from stream_node.care.doctor_access import check_audit, check_identities, check_tokens
    from stream_node.care.repair import RepairPlan, plan_repair
    from stream_node.care.repair import repair as do_repair
    from stream_node.care.restore import FileContents, Present, restore_file
    from stream_node.fleet.worker_directory import (
        back_up_all,
        database_folders,
        has_database,
        one_database_folder,
        restore_all,
    )
    from stream_node.node.clock_note import find_problem
    from stream_node.node.config_sources import load_config, load_effective
    from stream_storage.errors import StorageError
    from stream_storage.sqlite.backup import BackupManifest
    from stream_storage.sqlite.database import Database
    from stream_storage.sqlite.verify import VerifyReport
    from stream_storage.sqlite.verify import verify as verify_session

STREAMS_LISTED = 2**31
"""A number above the number of streams of any node: `verify` needs the total number of messages for its progress."""


def backup(
    target: Annotated[Path, typer.Argument(), "A new or empty folder for the backup."],
    data_dir: DataDirOption = None,
    verify: Annotated[bool, "Read and check every message of the copy."] = False,
) -> None:
    """Copy the database of a running or stopped node, and sync the copy to disk. With several workers, this copies the
    databases of all of them.

    Example: stream-node backup /backups/monday --data-dir ./data --verify
    """
    config = load_config({"data_dir": data_dir})
    started_s, now_us = time.monotonic(), time.time_ns() // 1000
    with ProgressLine() as progress:
        manifests = back_up_all(Path(config.data_dir), target, now_us=now_us, check=verify, progress=progress.count)
    seconds = time.monotonic() - started_s
    held = _held(manifests)
    report: dict[str, Any] = {"backup": str(target), "data_dir": config.data_dir, "databases": len(manifests)}
    report |= {"streams": held.streams, "messages": held.messages, "bytes": held.data_bytes}
    report["database_bytes"] = sum(each.database_bytes for each in manifests)
    report["sha256"] = manifests[0].sha256 if len(manifests) == 1 else None
    report |= {"created_us": now_us, "verified": verify, "seconds": round(seconds, 6)}
    counts = _counts(held) + (f" of {len(manifests)} workers" if len(manifests) > 1 else "")
    say(report, f"{counts} in {target}{', verified' if verify else ''} ({seconds:.2f} s)")


def restore(
    source: Annotated[
        Path | None, typer.Argument(show_default=False), "[BACKUP]", "A folder that `backup` made."
    ] = None,
    file: Annotated[Path | None, "A database file that Litestream restored, in place of BACKUP."] = None,
    data_dir: Annotated[str | None, "The data directory to restore to: new or empty, unless --over is given."] = None,
    verify: Annotated[bool, "Check every message first. With --file, this is always done."] = False,
    over: Annotated[bool, "Replace the database of a node that is stopped."] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Restore a backup into a data directory that a node can serve. The SHA-256 of the backup is always checked. The
    backup of a node with several workers is restored as a whole, and is served with the same number of workers.

    With --file, the source is a database file that `litestream restore` wrote. It has no SHA-256, so every message
    is checked.

    Messages and positions that were stored after the backup are lost. If the position of a consumer is after the end of
    its stream, the consumer gets an error that says so. Leases of shared streams start again, with fences (lease
    numbers) above all earlier ones.

    Example: stream-node restore /backups/monday --data-dir ./data --verify

    See what would be lost: stream-node restore /backups/monday --data-dir ./data --over --dry-run

    From Litestream: stream-node restore --file ./restored.sqlite --data-dir ./data
    """
    target = Path(as_given := load_config({"data_dir": data_dir}).data_dir)
    if over and not (dry_run or yes) and sys.stdin.isatty() and has_database(target):
        confirm(f"Replace the database in {as_given}? What was stored after the backup is lost.")
    with ProgressLine() as progress:
        if file is None and source is not None:
            manifests, found = restore_all(
                source, target, check=verify, over=over, dry_run=dry_run, progress=progress.count
            )
            held, present = _held(manifests), _present(found)
        elif file is not None and source is None:
            folder = one_database_folder(target)
            held, present = restore_file(file, folder, over=over, dry_run=dry_run, progress=progress.count)
        else:
            raise UsageError("name a folder that `backup` made, or a database with --file, and not both")
    report: dict[str, Any] = {
        "backup": None if source is None else str(source),
        "file": None if file is None else str(file),
        "data_dir": as_given,
    }
    report |= {"streams": held.streams, "messages": held.messages, "bytes": held.data_bytes}
    report |= {"created_us": held.created_us, "newest_us": held.newest_us}
    report |= {"verified": verify or file is not None, "dry_run": dry_run, "replaced": present.found}
    report |= {"replaced_streams": present.streams, "replaced_messages": present.messages}
    text = f"{_counts(held)} {'would be restored' if dry_run else 'restored'} to {as_given}"
    text += ", verified" if report["verified"] else ""
    if held.newest_us is not None:
        text += f", the newest from {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(held.newest_us // 1_000_000))}"
    if present.found:
        is_known = present.streams is not None and present.messages is not None
        text += f", in place of {_counts(present) if is_known else 'a database that cannot be read'}"
    say(report, text)


def _counts(of: FileContents | Present) -> str:
    return f"{counted(of.streams or 0, 'stream')}, {counted(of.messages or 0, 'message')}"


def _held(manifests: Sequence[BackupManifest]) -> FileContents:
    streams, messages = sum(each.streams for each in manifests), sum(each.messages for each in manifests)
    data_bytes, created_us = sum(each.data_bytes for each in manifests), max(each.created_us for each in manifests)
    return FileContents(streams, messages, data_bytes, created_us=created_us)


def _present(found: Sequence[Present]) -> Present:
    """Returns the states of several databases before a restore as one, without numbers if some are unknown."""
    there = [each for each in found if each.found]
    if not there or any(each.streams is None or each.messages is None for each in there):
        return Present(bool(there))
    return Present(True, sum(each.streams or 0 for each in there), sum(each.messages or 0 for each in there))


def verify(data_dir: DataDirOption = None) -> None:
    """Read and check everything in the database: schema, gaps, order, checksums and sizes. With several workers, this
    checks the databases of all of them. Also check the seals of the small files, and of all lines of the audit log.

    Example: stream-node verify --data-dir ./data
    """
    config = load_config({"data_dir": data_dir})
    folders = database_folders(Path(config.data_dir))
    # The files beside the databases come first.
    findings = [check(config) for check in (check_tokens, check_identities, check_audit)]
    problems = [each.text for each in findings if each.status == "wrong"]
    problems += filter(None, map(find_problem, folders.values()))
    problem_count, reports = len(problems), list[VerifyReport]()
    with ProgressLine() as progress:
        for name, folder in folders.items():
            prefix = f"{name}: " if name else ""
            try:
                found = _verified(folder, partial(progress.count, f"{prefix}verifying"))
            except StorageError as error:
                # The databases of the other workers are verified nevertheless.
                if not name:
                    raise
                problems.append(f"{prefix}{error}")
                problem_count += 1
            else:
                reports.append(found)
                problems += [f"{prefix}{each}" for each in found.problems]
                problem_count += found.problem_count
    streams, messages = sum(each.streams for each in reports), sum(each.messages for each in reports)
    size_bytes = sum(each.size_bytes for each in reports)
    report = {"ok": not problem_count, "streams": streams, "messages": messages, "bytes": size_bytes}
    held = f"{counted(streams, 'stream')}, {counted(messages, 'message')}, {counted(size_bytes, 'byte')}"
    verdict = counted(problem_count, "problem") if problem_count else "all as it should be"
    say({**report, "problems": problems, "problem_count": problem_count}, [*problems, f"{held}: {verdict}"])
    if problem_count:
        raise typer.Exit(1)


def _verified(folder: Path, progress: Callable[[int, int], None]) -> VerifyReport:
    with closing(Database.open(folder, read_only=True).read_session()) as session:
        total = sum(each.next_index - each.first_index for each in session.log.list_streams(limit=STREAMS_LISTED))
        return verify_session(session, lambda _, messages: progress(messages, total))


def doctor(config: ConfigOption = None, data_dir: DataDirOption = None, listen: ListenOption = None) -> None:
    """Check whether this machine and these settings are suitable for a node. The exit code is 1 if something is wrong.

    The checks are: SQLite and its known bugs, a Litestream beside the database, the file system, the duration of a
    sync, free disk space, the database file or the PostgreSQL server, the clock, the limit on open files, the
    addresses, the files of TLS, rules, tokens and identities, and the lines of the audit log. With several workers,
    the database of each is checked, and its name stands in front.

    Example: stream-node doctor --data-dir ./data --json
    """
    in_force, settings = load_effective({"data_dir": data_dir, "listen": listen}, file=config)
    findings = examine(in_force)
    wrong, warnings = (sum(each.status == status for each in findings) for status in ("wrong", "warning"))
    report = {"ok": not wrong, **msgspec.to_builtins({"findings": findings, "settings": settings})}
    lines = list(columns([(each.status, each.check, each.text) for each in findings]))
    changed = [f"{each.name}={each.value} ({each.where})" for each in settings if each.origin != "default"]
    lines.append(f"settings that are not defaults: {', '.join(changed) or 'none'}")
    lines.append(f"{wrong or 'nothing'} wrong, {counted(warnings, 'warning')}")
    say(report, lines)
    if wrong:
        raise typer.Exit(1)


def repair(
    data_dir: DataDirOption = None,
    yes: Annotated[bool, "Do the repair. Without this flag, the command only prints what it would do."] = False,
    accept_loss: Annotated[bool, "Repair even if messages are lost. The command lists the lost messages."] = False,
) -> None:
    """Repair a damaged write-ahead log of a stopped node. Without --yes, print what would be done.

    All data whose checksum is right, or can be made right, is recovered. If data is lost, the repair needs
    --accept-loss. It then puts an empty message with the header node/lost/1 in the place of each lost message, so that
    no index is assigned twice. The old log is kept in the data directory. If a repair is needed and not done, the exit
    code is 1.

    Example: stream-node repair --data-dir ./data --yes
    """
    directory = one_database_folder(Path(load_config({"data_dir": data_dir}).data_dir))
    plan = plan_repair(directory)
    done, kept = False, None
    if plan.needed:
        # At a terminal the user sees the plan and decides; a script needs --yes.
        possible = plan.lossless or accept_loss
        if not yes and possible and not AS_JSON.get() and sys.stdin.isatty() and sys.stderr.isatty():
            for line in _lines(plan, done=False):
                typer.echo(printable(line), err=True)
            yes = typer.confirm("Repair it?", err=True)
        if yes:
            plan, kept = do_repair(directory, accept_loss=accept_loss)
            done = True
    report = {"data_dir": str(directory), "needed": plan.needed, "lossless": plan.lossless, "done": done}
    report |= {"kept": None if kept is None else str(kept), **msgspec.to_builtins(plan)}
    say(report, [*_lines(plan, done=done), _outcome(plan, done, kept, accept_loss)])
    if plan.needed and not done:
        raise typer.Exit(1)


def _lines(plan: RepairPlan, *, done: bool) -> Iterator[str]:
    if not plan.needed:
        return
    yield (
        f"the write-ahead log has {counted(plan.frames, 'frame')}; frame {plan.bad} does not fit, and "
        f"{counted(plan.commits, 'commit')} can be seen from there on"
    )
    for frame, how in plan.how:
        yield f"frame {frame}: {how}" if how in ("lost", "written again later") else f"frame {frame}: known ({how})"
    for stream in plan.salvage:
        name = stream.name if stream.name.isprintable() else ascii(stream.name)
        saved = f"{counted(stream.saved, 'message')} {'recovered' if done else 'can be recovered'}"
        lost = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in stream.lost)
        yield f"{name}/{stream.partition}: {saved}" + (f", lost at {lost}" if lost else "")
    for problem in plan.others:
        yield f"beside that: {problem}"


def _outcome(plan: RepairPlan, done: bool, kept: Path | None, accept_loss: bool) -> str:
    if not plan.needed:
        return "nothing to repair in the write-ahead log"
    if done:
        return f"repaired; the old log is {kept}"
    if plan.lossless:
        return "nothing is lost: --yes repairs it"
    if accept_loss:
        return f"{plan.problem}: --yes --accept-loss saves the rest"
    return f"{plan.problem}: --accept-loss saves the rest, or restore a backup"
