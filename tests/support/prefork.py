"""Runs many short Python commands without an interpreter for each: one process imports what they need, and forks.

A page of the documentation is a dozen commands, and each would spend half a second of processor time on its imports.
Here a command is a process of its own all the same, with its own arguments, environment, folder and standard streams.

    with Prefork(folder) as prefork:
        program = prefork.program("stream-node")        # a file that a shell can call
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import typer

from stream_node.cli import app
from tests.support.command import python_program

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 20
IMPORTS = (
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "asyncio",
    "block_node.client.blocking",
    "cardinal_streams",
    "stream_client.blocking",
    "stream_client.connecting",
    "stream_node.care.certificates",
    "stream_node.node.config_sources",
    "stream_node.doors.http.listener",
    "stream_node.node.reloading",
    "stream_node.care.restore",
    "stream_node.cli.contexts",
    "stream_node.doors.metrics",
    "block_node.blocks.generator",
    "block_node.blocks.generator",
    "cardinal_streams.produce.simulation_machine",
    "stream_node.node.server",
)

PROGRAM = """import json, os, signal, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({path!r})
request = json.dumps([{name!r}, sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(asked, [len(request).to_bytes(4) + request], [0, 1, 2])
answers = asked.makefile("rb")
child = int(answers.readline())
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, lambda number, frame: os.kill(child, number))
sys.exit(int(answers.readline() or 1))
"""
"""What a shell calls. It hands over its streams, passes signals on, and ends with the exit code of the command."""


class Prefork:
    """The process that forks. A context manager: at its end, the process and every command that still runs are ended.

    folder: an empty folder for the socket and the programs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prefork:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.support.prefork", str(self._socket)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def program(self, name: str) -> Path:
        """A program that runs `stream-node`, or `python` with a file."""
        program = self.folder / name
        program.write_text(python_program(PROGRAM.format(path=str(self._socket), name=name), "-IS"))
        program.chmod(0o755)
        return program


def main(path: str) -> NoReturn:
    """Imports what commands need, and forks for each request that comes over the Unix socket `path`."""
    import_packages()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    while True:
        # Standard input ends with the test run, however that ends.
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()
        asked, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            answer(asked)
        asked.close()


def import_packages() -> None:
    """Imports what takes long, so that a command finds it imported. Freezing keeps forked processes from copying it."""
    for name in IMPORTS:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(importlib.import_module("stream_node.cli").__path__, "stream_node.cli."):
        importlib.import_module(module.name)
    program()
    gc.collect()
    gc.freeze()


@cache
def program() -> Any:
    """The command line. Making it takes as long as a short command, so it is made once."""
    return typer.main.get_command(app.build())


def answer(asked: socket.socket) -> NoReturn:
    """Becomes the command that was asked for, and ends with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, streams, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
    while len(data) < 4 + int.from_bytes(data[:4]):
        data += asked.recv(REQUEST_BYTES_MAX)
    name, arguments, environment, folder = json.loads(data[4:])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    asked.sendall(b"%d\n" % os.getpid())
    threading.Thread(target=die_with_caller, args=(asked,), daemon=True).start()
    end_at_once = os._exit

    def tell_and_end(code: int) -> NoReturn:
        """Also where a node ends by itself, which does not come back here."""
        asked.sendall(b"%d\n" % code)
        end_at_once(code)

    os._exit = tell_and_end  # type: ignore[assignment]
    code = run(name, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    tell_and_end(code)


def die_with_caller(asked: socket.socket) -> None:
    """Ends this process when the program that the shell called is killed: its end of the socket closes."""
    asked.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def run(name: str, arguments: list[str]) -> int:
    """Runs one command; its exit code."""
    try:
        if name == "stream-node":
            sys.argv = [name, *arguments]
            sys.exit(app.run(program()))
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            return 0
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        return exit_code(ended.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def exit_code(code: Any) -> int:
    """What the interpreter makes of the argument of `sys.exit`."""
    if isinstance(code, int) or code is None:
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


if __name__ == "__main__":
    main(sys.argv[1])
