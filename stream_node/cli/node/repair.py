"""The command `stream-node repair`: recovers the messages of a data directory whose write-ahead log is damaged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_node.cli.options import DataDirOption
from stream_node.cli.output import AS_JSON, counted, say
from stream_node.cli.printable import printable

if TYPE_CHECKING:
    from stream_node.care.repair import RepairPlan, Salvage


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
    import msgspec

    from stream_node.care.repair import plan_repair
    from stream_node.care.repair import repair as do_repair
    from stream_node.fleet.worker_directory import one_database_folder
    from stream_node.node.config_sources import load_config

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
    report = {
        "data_dir": str(directory),
        "needed": plan.needed,
        "lossless": plan.lossless,
        "done": done,
        "kept": None if kept is None else str(kept),
        **msgspec.to_builtins(plan),
    }
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
        yield _stream_line(stream, done)
    for problem in plan.others:
        yield f"beside that: {problem}"


def _stream_line(stream: Salvage, done: bool) -> str:
    name = stream.name if stream.name.isprintable() else ascii(stream.name)
    text = (
        f"{name}/{stream.partition}: {counted(stream.saved, 'message')} {'recovered' if done else 'can be recovered'}"
    )
    if stream.lost:
        runs = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in stream.lost)
        text += f", lost at {runs}"
    return text


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
