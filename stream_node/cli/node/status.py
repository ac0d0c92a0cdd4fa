"""The commands `stream-node status` (with checks for monitoring scripts) and `top`, which show the state of a node."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from stream_node.cli.client import ask_newer, open_client, run_to_signal, with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions
from stream_node.cli.output import AS_JSON, columns, say, say_json
from stream_node.cli.values import CommandFailed, UsageError, parse_duration, parse_size, time_text

if TYPE_CHECKING or RUNS:
    import msgspec
    import trio

    from stream_client import ClientError, NodeFailed, RequestRefused, StreamClient, UnexpectedAnswer
    from stream_node.care import trouble_service
    from stream_node.hosting.status import ADDRESS, OWN_WORKERS, OwnWorker, OwnWorkersRequest
    from stream_node.top.reading import ConsumerRate, NodeReader, SilentConsumer, TopView, find_silent, make_view

CONSUMERS_SHOWN = 20
LEVELS = ("ok", "warning", "critical", "unknown")
"""The results of a check. The position of each is the exit code that monitoring programs expect of a plug-in."""
RANKS = (0, 1, 3, 2)
"""How bad each level is. Critical outranks unknown: the node may be unable to report the rest."""

TROUBLES = "troubles"


class CheckResult(NamedTuple):
    """The result of one check. level: an index of LEVELS. figure: the performance data; empty without a measurement."""

    name: str
    level: int
    text: str
    figure: str = ""


class Check(NamedTuple):
    """A check that the user has asked for. warning, critical: the limits; equal if only one was given."""

    name: str
    warning: float
    critical: float

    def result(self, text: str, value: float | None, level: int | None = None) -> CheckResult:
        """Returns the result with its performance data: NAME=VALUE[UNIT];WARNING;CRITICAL;MINIMUM (Monitoring Plugins).
        U stands for an unknown value, and a limit with a colon is the lowest good value. level: by default, the value
        is compared with the limits."""
        if value is None:
            return CheckResult(self.name, 3, text, f"{self.name}=U")
        is_beyond = operator.lt if self.name == "free-disk" else operator.gt
        if level is None:
            level = is_beyond(value, self.warning) + is_beyond(value, self.critical)
        unit, colon = {"silent": ("s", ""), "free-disk": ("B", ":")}.get(self.name, ("", ""))
        limits = f"{self.warning}{colon};{self.critical}{colon}"
        return CheckResult(self.name, level, text, f"{self.name}={round(value, 3)}{unit};{limits};0")


def status(
    node: NodeOptions = ANY_NODE,
    check: Annotated[
        list[str] | None,
        "NAME=LIMIT",
        "Check lag (messages), silent (time) or free-disk (size). LIMIT is CRITICAL or WARNING,CRITICAL. "
        "The check troubles has no limit: it tells what the dashboard calls wrong. May be repeated.",
    ] = None,
) -> None:
    """Print how a node stands: whether it takes work, its free disk, the consumers that are farthest behind, and the
    operator's own workers.

    With --check, the exit code is that of a monitoring plug-in: 0 OK, 1 warning, 2 critical, 3 unknown. It is 3 if the
    node does not answer, or may not tell this user, and if the command is wrong. The first line ends with the measured
    figures (performance data). A node that takes no work, or whose database does not answer, is critical, which
    outranks unknown. A consumer without lag is never silent.

    Example: stream-node status --check troubles --check lag=10000 --check free-disk=10G,5G
    """
    checks = [parse_check(text) for text in check or ()]
    levels: list[int] = []

    async def run(client: StreamClient) -> None:
        reading = await NodeReader(client, rows_max=None).read()
        view = make_view(None, reading, "lag")
        silent = await find_silent(client, reading) if any(each.name == "silent" for each in checks) else None
        found = [_ready(view)] if checks else []
        for each in checks:
            found += await _find_troubles(client) if each.name == TROUBLES else [_measured(each, view, silent)]
        levels.extend(each.level for each in found)
        if reading.status is None and len(reading.notes) > 1:
            # Neither the streams nor the status were reported, so there may be no node at all.
            levels.append(3)
        workers: list[OwnWorker] = []
        # If the node does not tell them, the notes of the report say why.
        with suppress(ClientError, CommandFailed):
            if not checks:
                answer = await ask_newer(client, ADDRESS, OWN_WORKERS, OwnWorkersRequest(0), "tell its own workers")
                workers = answer.workers
        say(_report(view, found, workers), _lines(view, found, workers))

    with_client(run, node)
    if any(levels):
        raise typer.Exit(max(levels, key=RANKS.__getitem__))


def parse_check(text: str) -> Check:
    """Parses `NAME=CRITICAL`, `NAME=WARNING,CRITICAL` or `troubles`. Raises UsageError."""
    name, equals, limits = text.partition("=")
    if text == TROUBLES:
        return Check(TROUBLES, 0, 0)
    if not equals or name not in PARSERS:
        names = ", ".join(f"{each}=LIMIT" for each in PARSERS)
        raise UsageError(f"--check {text[:80]!r} is none of {TROUBLES}, {names}")
    parts = limits.split(",")
    if len(parts) > 2:
        raise UsageError(f"--check {text[:80]!r} has more than two limits: write CRITICAL or WARNING,CRITICAL")
    warning, critical = (PARSERS[name](part) for part in (parts[0], parts[-1]))
    is_ordered = warning >= critical if name == "free-disk" else warning <= critical
    if not is_ordered:
        raise UsageError(f"--check {text[:80]!r}: the warning must come before the critical limit")
    return Check(name, warning, critical)


def _parse_count(text: str) -> float:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{text[:80]!r} is no number of messages, such as 10000")
    return int(text)


def _parse_disk(text: str) -> float:
    """Parses a size. The B of a unit can be left out, as is usual in monitoring scripts: 5G."""
    return parse_size(f"{text}B" if text[-1:] in ("k", "K", "M", "G", "T", "i") else text)


PARSERS: dict[str, Callable[[str], float]] = {"lag": _parse_count, "silent": parse_duration, "free-disk": _parse_disk}


def _ready(view: TopView) -> CheckResult:
    if view.refusing_pushes is None:
        return CheckResult("ready", 3, "; ".join(view.notes) or "the node does not tell how it stands")
    if view.refusing_pushes:
        return CheckResult("ready", 2, "pushes are refused, because the disk is nearly full; make room")
    if view.write_failure is not None:
        return CheckResult("ready", 2, f"pushes are not stored: {view.write_failure}")
    return CheckResult("ready", 0, "the node takes work")


def _measured(check: Check, view: TopView, silent: SilentConsumer | None) -> CheckResult:
    """Returns the result of a check of lag, silent or free-disk."""
    if check.name == "free-disk":
        free = view.free_disk_bytes
        text = "the node does not tell its free disk space" if free is None else f"{free:,} bytes are free"
        return check.result(text, free)
    if silent is not None and check.name == "silent":
        client, stream, silent_s = silent
        text = f"{client} has made no progress on {stream} for {silent_s:.0f} s, although messages wait"
        return check.result(text, silent_s)
    worst = max(view.consumers, key=lambda each: each.lag, default=None)
    if check.name == "silent" or worst is None:
        # Consumers that this user may not see are unknown.
        notes = [note for note in view.notes if note.startswith(("streams: ", "consumers: "))]
        text = "no consumer is behind" if check.name == "silent" else "no consumer has saved a position"
        return check.result("; ".join(notes), None) if notes else check.result(text, 0)
    beyond = next((each for each in view.consumers if each.is_beyond_end), None)
    if beyond is not None:
        text = f"{beyond.client} cannot read {beyond.stream}: its position is beyond the end"
        return check.result(text, worst.lag, level=2)
    return check.result(f"{worst.client} is {worst.lag:,} messages behind on {worst.stream}", worst.lag)


async def _find_troubles(client: StreamClient) -> list[CheckResult]:
    try:
        request, what = trouble_service.TroublesRequest(0), "tell what is wrong"
        answer = await ask_newer(client, trouble_service.ADDRESS, trouble_service.TROUBLES, request, what)
        unknown = answer.unknown
    except (RequestRefused, UnexpectedAnswer, NodeFailed, CommandFailed) as error:
        unknown = str(error)
    if unknown:
        return [CheckResult(TROUBLES, 3, unknown, f"{TROUBLES}=U")]
    found = [CheckResult(each.kind, 1 + each.is_bad, each.title) for each in answer.troubles]
    last = "that is all that is wrong" if found else "nothing is wrong"
    if more := answer.total - len(found):
        last = f"{more:,} more of these kinds; the metrics and the dashboard count all"
    return [*found, CheckResult(TROUBLES, 0, last, f"{TROUBLES}={answer.total};0;;0")]


def _report(view: TopView, found: list[CheckResult], workers: list[OwnWorker]) -> dict[str, Any]:
    return {
        "version": view.version,
        "ready": None if view.refusing_pushes is None else not _ready(view).level,
        "free_disk_bytes": view.free_disk_bytes,
        "connections": view.connections,
        "streams": len(view.streams),
        "consumers": [
            {"client_id": each.client, "stream": each.stream, "lag": each.lag, "saved": time_text(each.saved_us)}
            for each in _worst_first(view)
        ],
        "own_workers": [msgspec.structs.asdict(each) for each in workers],
        "checks": [{"check": each.name, "level": LEVELS[each.level], "text": each.text} for each in found],
        "notes": view.notes,
    }


def _lines(view: TopView, found: list[CheckResult], workers: list[OwnWorker]) -> list[str]:
    if found:
        worst_first = sorted(found, key=lambda each: -RANKS[each.level])
        # A bar begins the performance data, and a name may contain bars.
        texts = (f"{LEVELS[each.level].upper()} {each.name}: {each.text}".replace("|", "¦") for each in worst_first)
        first, *others = texts
        return [f"{first} | {' '.join(each.figure for each in found if each.figure)}", *others]
    free = "unknown" if view.free_disk_bytes is None else f"{view.free_disk_bytes:,} bytes"
    lines = [f"stream-node {view.version or 'of an unknown version'}: {_ready(view).text}; free disk: {free}"]
    shown = _worst_first(view)[:CONSUMERS_SHOWN]
    rows = [("consumer", "stream", "lag", "last progress")]
    rows += [(each.client, each.stream, f"{each.lag:,}", time_text(each.saved_us)) for each in shown]
    lines += columns(rows, right=frozenset({2})) if shown else []
    if left_out := len(view.consumers) - len(shown):
        lines.append(f"and {left_out:,} more consumers; --json has all")
    table = [("worker", "class", "state", "process", "waiting", "restarts", "ended last because")]
    for worker in workers:
        place = "  " * worker.depth + worker.address, worker.kind, worker.state, worker.process
        table.append((*place, f"{worker.waiting:,}", f"{worker.restarts:,}", worker.reason))
    return [*lines, *columns(table, right=frozenset({4, 5}))] if workers else lines


def _worst_first(view: TopView) -> list[ConsumerRate]:
    return sorted(view.consumers, key=lambda each: (-each.lag, each.client, each.stream))


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
    # The other commands do without Rich.
    from rich.console import Console

    from stream_node.top.screen import draw, show_live

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
