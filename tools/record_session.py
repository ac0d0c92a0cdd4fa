"""Draws `docs/images/session.svg`: the README's commands, typed at a terminal of their own against a real node.

    python tools/record_session.py

It runs each command with a pseudo-terminal in an empty folder, and draws what the command printed. It checks nothing.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "session.svg"
WIDTH = 86
"""The columns of the terminal: the longest line, and some space."""

SERVE = "stream-node serve --data-dir ./data --http 127.0.0.1:8080"
KILL = "kill -9 %1"
SESSION = (
    f"{SERVE} &",
    r"printf 'one\ntwo\nthree\n' | stream-node push numbers",
    "stream-node consume numbers --client mailer",
    "stream-node push numbers --data four",
    KILL,
    "stream-node verify --data-dir ./data",
    f"{SERVE} &",
    "stream-node consume numbers --client mailer",
)
"""The typed commands. A node in the background runs on; `kill` ends it without a warning."""

FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Matches fonts that a browser would load from elsewhere. The reader's own fixed-width font replaces them."""


class Terminal:
    """Terminal: runs commands in one folder, each with a pseudo-terminal as its output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._node: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def type(self, command: str) -> str:
        """Runs a command, and returns what it printed."""
        if command == KILL:
            self.kill()
            return ""
        if command.endswith("&"):
            self._node, output = self._start(f"exec {command.removesuffix('&')}")
            return os.read(output, 65_536).decode()
        process, output = self._start(command)
        text = b""
        while True:
            try:
                part = os.read(output, 65_536)
            except OSError:  # Linux says so when the last writer of a pseudo-terminal has closed it.
                break
            text += part
        if process.wait() != 0:
            raise SystemExit(f"record_session: {command} failed: {text.decode()}")
        return text.decode()

    def kill(self) -> None:
        """Ends the node without a warning."""
        if self._node is not None:
            self._node.kill()
            self._node.wait()

    def _start(self, command: str) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["sh", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        return process, ours


def record() -> list[tuple[str, str]]:
    """Returns the session: every command with what it printed."""
    folder = Path(tempfile.mkdtemp())
    terminal = Terminal(folder)
    try:
        session = []
        for command in SESSION:
            session.append((command, terminal.type(command).replace("\r\n", "\n").replace(str(folder), ".")))
            time.sleep(0.2)
        return session
    finally:
        terminal.kill()
        shutil.rmtree(folder)


def draw(session: list[tuple[str, str]]) -> str:
    """Returns the session as an SVG picture of a terminal."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for command, output in session:
            console.print(Text("$ ", "bold green") + Text(command, "bold white"))
            if output:
                console.print(Text(output.rstrip("\n"), "bright_white"))
        svg = console.export_svg(title="stream-node", theme=MONOKAI, unique_id="session")
    svg = svg.replace("<!-- Generated with Rich https://www.textualize.io -->", "<!-- tools/record_session.py -->")
    svg = FONT_FACE.sub("", svg).replace("font-family: Fira Code, monospace", "font-family: monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
    sys.stderr.write(f"record_session: {PICTURE.relative_to(ROOT)} is drawn\n")
