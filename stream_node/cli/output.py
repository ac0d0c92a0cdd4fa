"""Prints the output of commands: text for people, or one JSON object per line. Also formats counts and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer

from stream_node.log_writer import write_waiting_lines
from stream_node.printable import printable


def say(as_json: bool, report: Mapping[str, Any], text: str | Iterable[str]) -> None:
    """Prints the report as JSON if `as_json` is True. Otherwise prints the text, which may have several lines."""
    if as_json:
        say_json(report)
        return
    for line in (text,) if isinstance(text, str) else text:
        typer.echo(printable(line))


def tell(text: str) -> None:
    """Prints a line for people on stderr, apart from the output of the command and behind what it logged so far."""
    write_waiting_lines()
    typer.echo(f"stream-node: {printable(text)}", err=True)


def say_json(report: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(report))


def confirmed(question: str) -> bool:
    """Asks a question on stderr, so that programs do not read it as output. Returns whether the answer is
    exactly `yes`."""
    typer.echo(f"{printable(question)} Type yes: ", err=True, nl=False)
    return sys.stdin.readline().strip() == "yes"


def counted(number: int, noun: str) -> str:
    """Formats a count with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yields the lines of a table. Each column is as wide as its widest cell.

    right: the numbers of the columns that are aligned to the right, from 0.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
