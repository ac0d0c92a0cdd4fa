"""`top` in a pseudo-terminal: its last drawing as lines without colours, and the keys that a user presses."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stream_node.node.process import NodeProcess

PATIENCE_S = 30.0


class Terminal:
    """`top` in a pseudo-terminal of its own."""

    def __init__(self, node: NodeProcess, width: int, height: int, arguments: tuple[str, ...]) -> None:
        self.here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(there)

        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(2, termios.TIOCSCTTY, 0)

        command = [sys.executable, "-m", "stream_node", "top", "--node", node.address, "--interval", "0.2", *arguments]
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, env={**kept, "TERM": "xterm"}, preexec_fn=own_the_terminal
        )
        self.there = there
        self.text = ""

    def press(self, keys: bytes) -> None:
        os.write(self.here, keys)

    @property
    def screen(self) -> list[str]:
        """The lines of the last whole drawing, without colours. A drawing begins at the upper left corner."""
        drawings = self.text.split("\x1b[H")
        last = drawings[-1] if "q quit" in drawings[-1] else drawings[-2] if len(drawings) > 1 else ""
        return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "").split("\n")]

    def wait_for(self, condition: Callable[[list[str]], object]) -> list[str]:
        """Read until the screen fulfils the condition, and return it."""
        ends_s = time.monotonic() + PATIENCE_S
        while not condition(self.screen):
            assert time.monotonic() < ends_s, self.screen
            self._read(0.2)
        return self.screen

    def wait_end(self) -> int:
        """Read to the end of the command, and return its exit code."""
        ends_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < ends_s, self.screen
            self._read(0.1)
        self._read(0.1)
        return self.process.wait()

    def _read(self, timeout_s: float) -> None:
        if select.select([self.here], [], [], timeout_s)[0]:
            self.text += os.read(self.here, 1 << 16).decode(errors="replace")


@contextmanager
def top_in_terminal(node: NodeProcess, width: int, height: int, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(node, width, height, arguments)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.here)
        os.close(terminal.there)
