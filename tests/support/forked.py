"""Starts many nodes and commands without an interpreter for each: one process imports the packages, and forks.

A start spends half a second of processor time on its imports. Where a start is not what a test is about, `ForkedPopen`
takes the place of `subprocess.Popen`. What it starts is a child process of the test all the same, with its own process
number, arguments, environment, folder and standard streams, so that signals, kills and exit codes are real. The tests
of the installed command (`tests/black_box`) start interpreters.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from stream_node.cli import app
from stream_storage import failpoint
from tests.support.command import COMMAND
from tests.support.prefork import ROOT, import_packages, program

REQUEST_BYTES_MAX = 1 << 20
PR_SET_CHILD_SUBREAPER = 36
MODULE = (sys.executable, "-m", "stream_node")
AT_IMPORT = ("LD_", "PYTHON", failpoint.ENVIRONMENT_VARIABLE, failpoint.DELAY_VARIABLE, "TERMINAL_WIDTH", "TZ")
"""Variables whose names begin so act before or during the imports: a command with one of them gets an interpreter."""
PLAIN = (True, None, None, None, -1, False, -1)
"""The last arguments of `Popen` where a test wants nothing special: no other user, session or process group."""


class Nursery:
    """The process that forks, and the socket to it. It ends when the test process does, since its socket closes.

    program: the options of the interpreter that make it serve a socket (`serve_forks`), whose number comes last.
    """

    def __init__(self, *program: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *program, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        assert self._socket.recv(16) == b"ready"
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._socket.close()
            self._process.wait()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: list[int]) -> int:
        """Starts a command as a child of this process. streams: its standard streams. Returns its process number."""
        request = json.dumps([[*arguments], dict(environment), folder, os.getpgrp()]).encode()
        with self._lock:
            # The forked process is a grandchild whose parent ends at once; then it becomes the child of this process.
            self._become_subreaper(True)
            try:
                socket.send_fds(self._socket, [request], streams)
                return int(self._socket.recv(16))
            finally:
                self._become_subreaper(False)

    def _become_subreaper(self, on: bool) -> None:
        if self._libc.prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks what is `stream-node` and nothing special, and starts everything else as ever."""

    program: tuple[str, ...] = ("-W", "error", "-m", "tests.support.forked")
    nursery: Nursery | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        _, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes = rest
        streams, special = pipes[:6], tuple(pipes[6:])
        environment = os.environ if env is None else env
        named = self.forked_arguments(args)
        if named is None or preexec_fn or pass_fds or shell or special != PLAIN or has_effect_at_import(environment):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        kind = type(self)
        if kind.nursery is None:
            # Not by this class: the process that forks is an interpreter.
            with PlainPopen():
                kind.nursery = Nursery(*self.program)
        ours = [each if each != -1 else number for number, each in enumerate((streams[0], streams[3], streams[5]))]
        self.pid = kind.nursery.start(named, environment, os.fspath(cwd or os.getcwd()), ours)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    @staticmethod
    def forked_arguments(args: Any) -> list[str] | None:
        """The arguments of `stream-node` in a command line; None if that runs something else."""
        line = [] if isinstance(args, str | bytes) else [os.fspath(each) for each in args]
        for start in (COMMAND, MODULE):
            if tuple(line[: len(start)]) == start:
                return line[len(start) :]
        return None


def has_effect_at_import(environment: Mapping[str, str]) -> bool:
    """Whether a variable that this process does not have as well changes what an interpreter or an import does."""
    return any(
        os.environ.get(name) != value
        for name, value in environment.items()
        if name.startswith(AT_IMPORT) and (name, value) != ("PYTHONPATH", str(ROOT))
    )


class PlainPopen:
    """For the block, `subprocess.Popen` is Python's own."""

    def __enter__(self) -> None:
        self._before = subprocess.Popen
        subprocess.Popen = ForkedPopen.__base__  # type: ignore[assignment, misc]

    def __exit__(self, *exception: object) -> None:
        subprocess.Popen = self._before  # type: ignore[misc]


def main(number: int) -> NoReturn:
    """Forks for each request that comes over the socket `number`; in the forked process, runs the command."""
    import_packages()
    serve_forks(number, become_command)


def serve_forks(number: int, become: Callable[[list[str]], NoReturn]) -> NoReturn:
    """Forks for each request that comes over the socket `number`, and ends when that closes.

    become: called in the forked process with the arguments of the request. Folder, environment and standard streams
    are those of the request.
    """
    asked = socket.socket(fileno=number)
    asked.send(b"ready")
    while True:
        data, streams, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not data:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                asked.close()
                os.close(read)
                os.close(write)
                arguments, environment, folder, group = json.loads(data)
                take_over(streams, environment, folder, group)
                become(arguments)
            os.write(write, b"%d" % child)
            os._exit(0)
        os.waitpid(between, 0)
        asked.send(os.read(read, 16))
        for each in (read, write, *streams):
            os.close(each)


def take_over(streams: list[int], environment: dict[str, str], folder: str, group: int) -> None:
    """Gives this process what the one that was asked for begins with."""
    with suppress(PermissionError):
        os.setpgid(0, group)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", line_buffering=os.isatty(1)
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), "utf-8", "backslashreplace", line_buffering=True
    )


def become_command(arguments: list[str]) -> NoReturn:
    """Turns this process into the command that was asked for, and ends with it as an interpreter would."""
    # The process that forks has begun before the test: under `nohup`, it ignores this signal, see tests/conftest.py.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["stream-node", *arguments]
    sys.exit(app.run(partial(program(), prog_name="stream-node")))


if __name__ == "__main__":
    main(int(sys.argv[1]))
