"""Draws a view of a node with Rich, once or again and again (`show_live`). A narrow terminal gets fewer columns, and a
low one fewer rows. Names come from peers, so they are made printable and are never read as markup."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stream_client import ClientError, ConnectionLost, NodeUnreachable, RequestTimeout
from stream_node.cli.output import age_text, counted, duration_text, size_text
from stream_node.cli.values import printable
from stream_node.top.reading import (
    SORT_KEYS,
    ConsumerRate,
    NodeReader,
    Reading,
    SortKey,
    StreamRate,
    TopView,
    make_view,
)

Kind: TypeAlias = Literal["plain", "warning", "problem"]
NAME_COLUMNS_MIN = 12
"""The least width of a column with names. Other columns are left out before names get less."""
ROWS_MIN = 3


class Column(NamedTuple):
    """A column of a table. width: the width of its cells; 0: the column has names, and gets the remaining width."""

    title: str
    width: int
    text: Callable[[Any, TopView], str]


STREAM_COLUMNS: Sequence[Column] = (
    Column("stream", 0, lambda row, _: row.stream),
    Column("msg/s", 9, lambda row, _: rate_text(row.messages_per_s)),
    Column("messages", 13, lambda row, _: f"{row.messages:,}"),
    Column("size", 9, lambda row, _: size_text(row.bytes)),
    Column("max lag", 11, lambda row, _: "-" if row.lag is None else f"{row.lag:,}"),
    Column("parts", 5, lambda row, _: f"{row.partitions:,}"),
    Column("newest", 8, lambda row, view: age_text(row.newest_us, view.now_us)),
)
"""The columns of the table of streams. The first ones matter most, and are left out last."""
CONSUMER_COLUMNS: Sequence[Column] = (
    Column("consumer", 0, lambda row, _: row.client),
    Column("lag", 11, lambda row, _: f"{row.lag:,}"),
    Column("stream", 0, lambda row, _: row.stream),
    Column("msg/s", 9, lambda row, _: rate_text(row.messages_per_s)),
    Column("saved", 8, lambda row, view: age_text(row.saved_us, view.now_us)),
    Column("members", 7, lambda row, _: f"{row.members:,}" if row.members else "-"),
    Column("parts", 5, lambda row, _: f"{row.partitions:,}"),
)


def draw(
    view: TopView, node: str, sort: str, width: int, height: int | None, problem: str | None = None
) -> RenderableType:
    """Returns the drawing. height: None: all rows are drawn. problem: why there is no newer view."""
    lines: list[tuple[Kind, str]]
    lines = [(kind, each) for kind, facts in head_lines(view, node, sort) for each in wrap(facts, width)]
    lines += [("warning", note) for note in view.notes]
    if problem is not None:
        lines.append(("problem", problem))
    styles = {"plain": "", "warning": "yellow", "problem": "bold red"}
    texts = [Text(printable(text), style=styles[kind], no_wrap=True) for kind, text in lines]
    for each in texts:
        each.truncate(max(1, width), overflow="ellipsis")
    streams_max = consumers_max = None
    if height is not None:
        # Two empty lines, two lines with titles, and two lines with the numbers of rows that are left out.
        room = max(2 * ROWS_MIN, height - len(texts) - 6)
        # Room that one table does not need goes to the other.
        consumers_max = min(len(view.consumers), max(ROWS_MIN, room // 2, room - len(view.streams)))
        streams_max = max(ROWS_MIN, room - consumers_max)
    streams = _table(STREAM_COLUMNS, view.streams, view, width, streams_max, "no streams")
    consumers = _table(CONSUMER_COLUMNS, view.consumers, view, width, consumers_max, "no consumers")
    return Group(*texts, Text(""), streams, Text(""), consumers)


def head_lines(view: TopView, node: str, sort: str) -> list[tuple[Kind, list[str]]]:
    lines: list[tuple[Kind, list[str]]] = [("plain", [node, f"by {sort}"])]
    rates = view.rates
    # A node that does not report its status has no such lines.
    if view.version is not None:
        lines[0][1][1:1] = [
            f"stream-node {view.version}",
            f"up {duration_text(view.uptime_s)}",
            counted(view.connections or 0, "connection"),
            f"schema {view.schema_version}",
        ]
        traffic = [
            f"in {rate_text(rates.messages_per_s)} msg/s",
            f"commit {'-' if rates.commit_ms is None else f'{rates.commit_ms:.1f} ms'}",
            f"{rate_text(rates.commits_per_s)} commits/s",
            f"{rate_text(rates.reads_per_s)} reads/s",
            f"{view.waiting:,} waiting",
        ]
        lines.append(("plain", traffic))
        state = [
            f"free disk {'unknown' if view.free_disk_bytes is None else size_text(view.free_disk_bytes)}",
            f"peers {size_text(view.memory_bytes or 0)}",
            f"{view.refused:,} refused",
            f"{view.failed:,} failed",
        ]
        lines.append(("plain", state))
    if view.blocks is not None:
        blocks = view.blocks
        facts = [f"chain {blocks.chain}"]
        facts.append("no blocks" if blocks.first is None else f"blocks {blocks.first:,} to {blocks.last:,}")
        if blocks.next_expected is not None:
            facts.append(f"next {blocks.next_expected:,}")
        if blocks.missing:
            facts.append(f"{blocks.missing:,} missing")
        lines.append(("warning" if blocks.missing else "plain", facts))
    # Troubles stand last among these lines.
    if view.refusing_pushes:
        lines.append(("problem", ["pushes are refused: the disk is nearly full; make room, or set a retention"]))
    if view.write_failure is not None:
        lines.append(("problem", [f"pushes are not stored: {view.write_failure}"]))
    return lines


def wrap(facts: Sequence[str], width: int) -> list[str]:
    """Returns the facts in lines of at most `width` characters, unless one fact alone is longer."""
    lines = [facts[0]]
    for fact in facts[1:]:
        longer = f"{lines[-1]}  {fact}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines


def fit(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """Returns the columns that fit into a width, each with its own width. The last columns are left out first. The
    columns with names share the remaining width."""
    chosen = list(columns)
    while len(chosen) > 1 and sum(each.width or NAME_COLUMNS_MIN for each in chosen) + 2 * (len(chosen) - 1) > width:
        chosen.pop()
    names = sum(each.width == 0 for each in chosen)
    left = width - 2 * (len(chosen) - 1) - sum(each.width for each in chosen)
    shares = [left // names + (left % names if at == 0 else 0) for at in range(names)]
    return [(each, each.width or max(1, shares.pop(0))) for each in chosen]


def rate_text(per_s: float | None) -> str:
    """Formats events per second: "-", "0.5", "12", "1,234"."""
    if per_s is None:
        return "-"
    return f"{per_s:.1f}" if 0 < abs(per_s) < 10 else f"{per_s:,.0f}"


def _table(
    columns: Sequence[Column],
    rows: Sequence[StreamRate] | Sequence[ConsumerRate],
    view: TopView,
    width: int,
    rows_max: int | None,
    nothing: str,
) -> RenderableType:
    if not rows:
        return Text(nothing, style="dim")
    shown = rows if rows_max is None else rows[:rows_max]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", width=width)
    fitting = fit(columns, width)
    for column, size in fitting:
        # The title of a number stands above its last digit.
        justify: Literal["left", "right"] = "right" if column.width else "left"
        table.add_column(Text(column.title), justify=justify, width=size, no_wrap=True, overflow="ellipsis")
    for row in shown:
        table.add_row(*(Text(printable(column.text(row, view))) for column, _ in fitting))
    left_out = len(rows) - len(shown)
    return Group(table, Text(f"and {left_out:,} more", style="dim")) if left_out else table


QUIT, SORT = b"qQ\x04", b"sS"
"""The keys that end the view (also Ctrl-D), and those that change the order."""


async def show_live(reader: NodeReader, node: str, interval_s: float, sort: SortKey, console: Console) -> None:
    """Draws until a key ends the view. A node that is lost later is drawn as it was, with the reason, until it is
    back. Raises a ClientError if the first reading fails."""
    before: Reading | None = None
    now = await reader.read()
    problem: str | None = None

    def redraw() -> None:
        width, height = console.size
        # The last line shows the keys, so the view gets one line less.
        with console.capture() as capture:
            console.print(draw(make_view(before, now, sort), node, sort, width, height - 1, problem))
        lines = list(Text.from_ansi(capture.get()).split("\n"))
        while lines and not lines[-1].plain:
            lines.pop()
        shown = lines[: height - 1]
        shown += (Text("") for _ in range(height - 1 - len(shown)))
        live.update(Text("\n").join([*shown, Text("q quit  s sort", style="dim")]), refresh=True)

    async def read_on() -> None:
        nonlocal before, now, problem
        redraw()
        while True:
            await trio.sleep(interval_s)
            try:
                before, now, problem = now, await reader.read(), None
            except (ConnectionLost, NodeUnreachable, RequestTimeout) as error:
                problem = f"the node is gone, and this is how it was: {error}"
            except ClientError as error:
                problem = str(error)
            redraw()

    with _keys_at_once() as has_keys, Live(console=console, screen=True, auto_refresh=False) as live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_on)
            # The end of the input ends the view, too.
            while has_keys:
                await trio.lowlevel.wait_readable(sys.stdin)
                pressed = os.read(sys.stdin.fileno(), 64)
                if not pressed or any(key in QUIT for key in pressed):
                    nursery.cancel_scope.cancel()
                    break
                if any(key in SORT for key in pressed):
                    sort = SORT_KEYS[(SORT_KEYS.index(sort) + 1) % len(SORT_KEYS)]
                    redraw()


@contextmanager
def _keys_at_once() -> Iterator[bool]:
    """Makes the terminal hand on each key at once, and show none. Yields whether there is a terminal."""
    if not sys.stdin.isatty():
        yield False
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
