"""Draws a node again and again on the whole terminal, and obeys keys: q ends it, s changes the order of the rows."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from stream_client import ClientError, ConnectionLost, NodeUnreachable, RequestTimeout
from stream_node.top.rates import SORT_KEYS, SortKey, make_view
from stream_node.top.reading import NodeReader, Reading
from stream_node.top.screen import draw

QUIT, SORT = b"qQ\x04", b"sS"
"""The keys that end the view (also Ctrl-D), and those that change the order."""


class LiveTop:
    def __init__(self, reader: NodeReader, node: str, interval_s: float, sort: SortKey, console: Console) -> None:
        self._reader = reader
        self._node = node
        self._interval_s = interval_s
        self._sort: SortKey = sort
        self._console = console
        self._before: Reading | None = None
        self._now: Reading | None = None
        self._problem: str | None = None

    async def run(self) -> None:
        """Draws until a key ends the view. A node that is lost later is drawn as it was, with the reason, until it is
        back. Raises a ClientError if the first reading fails."""
        self._now = await self._reader.read()
        with _keys_at_once() as has_keys, Live(console=self._console, screen=True, auto_refresh=False) as live:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_on, live)
                if has_keys:
                    await self._obey_keys(live)
                    nursery.cancel_scope.cancel()

    async def _read_on(self, live: Live) -> None:
        self._draw(live)
        while True:
            await trio.sleep(self._interval_s)
            try:
                found = await self._reader.read()
                self._before, self._now, self._problem = self._now, found, None
            except (ConnectionLost, NodeUnreachable, RequestTimeout) as error:
                self._problem = f"the node is gone, and this is how it was: {error}"
            except ClientError as error:
                self._problem = str(error)
            self._draw(live)

    async def _obey_keys(self, live: Live) -> None:
        """Returns at a key that ends the view, or at the end of the input."""
        while True:
            await trio.lowlevel.wait_readable(sys.stdin)
            pressed = os.read(sys.stdin.fileno(), 64)
            if not pressed or any(key in QUIT for key in pressed):
                return
            if any(key in SORT for key in pressed):
                self._sort = SORT_KEYS[(SORT_KEYS.index(self._sort) + 1) % len(SORT_KEYS)]
                self._draw(live)

    def _draw(self, live: Live) -> None:
        assert self._now is not None
        width, height = self._console.size
        view = make_view(self._before, self._now, self._sort)
        # The last line shows the keys, so the view gets one line less.
        drawn = draw(view, self._node, self._sort, width, height - 1, self._problem)
        live.update(_with_keys(drawn, self._console, height), refresh=True)


def _with_keys(drawn: RenderableType, console: Console, height: int) -> Text:
    with console.capture() as capture:
        console.print(drawn)
    lines = list(Text.from_ansi(capture.get()).split("\n"))
    while lines and not lines[-1].plain:
        lines.pop()
    shown = lines[: height - 1]
    blank = [Text("") for _ in range(height - 1 - len(shown))]
    return Text("\n").join([*shown, *blank, Text("q quit  s sort", style="dim")])


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
