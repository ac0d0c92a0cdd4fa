"""Goal: a progress line says how far a command is and how long it will take, fits any terminal, and leaves what a user
types alone.

Method: the text at every width; then the real commands in pseudo-terminals of 60 and 120 columns, whose output is
played onto a grid of cells as a terminal does.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_node.cli.output import progress_text
from stream_node.node.process import NodeProcess

PROGRAM = "from stream_node.cli import output; output.DRAWN_EVERY_S = 0; from stream_node.cli.app import main; main()"
"""The command, drawing each time it could."""


@given(
    st.integers(0, 10**12),
    st.none() | st.integers(1, 10**12),
    st.lists(st.text("abc ", min_size=1, max_size=30), max_size=3),
    st.floats(0, 10**6),
    st.integers(20, 200),
)
def test_the_line_is_shorter_than_the_terminal_is_wide(
    done: int, total: int | None, facts: list[str], elapsed_s: float, columns: int
) -> None:
    text = progress_text("verifying", done, total, facts, elapsed_s, columns)
    assert len(text) < columns
    assert text.startswith("verifying")
    assert ("%" in text) == (total is not None)


def test_share_and_time_left_come_before_all_else_at_60_columns() -> None:
    facts = ("1,234,567 messages", "123,456 a second")
    text = progress_text("pushing", 25, 100, facts, 30.0, 60)
    assert text == "pushing  [##         ]   25%  90 s left  1,234,567 messages"
    wide = progress_text("pushing", 25, 100, facts, 30.0, 120)
    assert wide == f"pushing  [{'#' * 10}{' ' * 30}]   25%  90 s left  {facts[0]}  {facts[1]}"
    assert progress_text("pushing", 25, None, facts, 30.0, 60) == "pushing  1,234,567 messages  123,456 a second"
    assert "left" not in progress_text("pushing", 25, 100, (), 0.5, 60)
    assert "2 h left" in progress_text("copying", 1, 2, (), 7_200.0, 60)
    assert "100%" in progress_text("copying", 3, 2, (), 7_200.0, 60)


class Terminal:
    """A command in a pseudo-terminal; `text` is all that it was sent."""

    def __init__(self, columns: int, *arguments: str, stdin: int | None = None, typed: bytes = b"") -> None:
        here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = [sys.executable, "-c", PROGRAM, *arguments]
        environment = {**os.environ, "TERM": "xterm"}
        given_stdin = there if stdin is None else stdin

        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(2, termios.TIOCSCTTY, 0)

        with subprocess.Popen(
            command, stdin=given_stdin, stdout=there, stderr=there, env=environment, preexec_fn=own_the_terminal
        ) as process:
            os.close(there)
            timer = threading.Timer(60, process.kill)
            timer.start()
            if typed:
                os.write(here, typed)
            self.text = b"".join(_read(here)).decode()
            self.code = process.wait(60)
            timer.cancel()
        self.columns = columns

    @property
    def drawn(self) -> list[str]:
        """Each drawing of a line, without what ends it."""
        return [each.removesuffix("\x1b[K") for each in re.findall(r"\r([^\r\n]*\x1b\[K)", self.text)]

    @property
    def screen(self) -> list[str]:
        """What is to be seen at the end, as a terminal that wraps long lines shows it."""
        rows, at = [""], 0
        for piece in re.findall(r"\x1b\[K|\r|\n|[^\x1b\r\n]", self.text):
            if piece == "\r":
                at = 0
            elif piece == "\n":
                rows.append("")
                at = 0
            elif piece == "\x1b[K":
                rows[-1] = rows[-1][:at]
            else:
                if at == self.columns:
                    rows.append("")
                    at = 0
                rows[-1] = rows[-1][:at].ljust(at) + piece + rows[-1][at + 1 :]
                at += 1
        return [row for row in rows if row]


def _read(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # The last one that had the other end has closed it.
        while data := os.read(terminal, 65_536):
            yield data
    os.close(terminal)


@pytest.mark.parametrize("columns", [60, 120])
def test_a_push_of_a_file_shows_how_far_it_is(node: NodeProcess, tmp_path: Path, stream: str, columns: int) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"line %d\n" % number for number in range(2_000)))
    terminal = Terminal(columns, "push", stream, str(file), "--node", node.address)
    shares = [int(share) for share in re.findall(r"(\d+)%", " ".join(terminal.drawn))]
    assert terminal.code == 0
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert shares[-1] >= 99
    assert all(len(line) < columns for line in terminal.drawn)
    assert "".join(terminal.screen).startswith(f"2,000 messages in {stream}/0 at 0 to 1999")


def test_a_push_from_a_redirected_file_shows_its_share(node: NodeProcess, tmp_path: Path, stream: str) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"line\n" * 500)
    with file.open() as source:
        terminal = Terminal(60, "push", stream, "--node", node.address, stdin=source.fileno())
    assert terminal.code == 0
    assert "100%" in terminal.drawn[-2]


def test_nothing_is_drawn_over_what_is_typed(node: NodeProcess, stream: str) -> None:
    terminal = Terminal(60, "push", stream, "--node", node.address, typed=b"one\ntwo\n\x04")
    assert (terminal.code, terminal.drawn) == (0, [])
    assert "".join(terminal.screen).startswith("onetwo2 messages in ")


@pytest.mark.slow
def test_a_verification_shows_its_share(node: NodeProcess, tmp_path: Path, stream: str) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"line\n" * 12_000)
    assert Terminal(60, "push", stream, str(file), "--node", node.address).code == 0
    terminal = Terminal(60, "verify", "--data-dir", str(node.data_dir))
    assert terminal.code == 0
    assert any("%" in line for line in terminal.drawn)
    assert "".join(terminal.screen).endswith("all as it should be")
    assert "%" not in "".join(terminal.screen)
