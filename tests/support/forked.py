"""Starts many nodes and commands without an interpreter for each: one process imports the packages, and forks.

A start spends half a second of processor time on its imports. Where a start is not what a test is about, `ForkedPopen`
takes the place of `subprocess.Popen`. What it starts is a child process of the test all the same, with its own process
number, arguments, environment, folder and standard streams, so that signals, kills and exit codes are real. The tests
of the installed command (`tests/black_box`) start interpreters.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
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
DESCRIPTORS_MAX = 64
PR_SET_CHILD_SUBREAPER = 36
MODULE = (sys.executable, "-m", "stream_node")
AT_IMPORT = ("LD_", "PYTHON", failpoint.ENVIRONMENT_VARIABLE, failpoint.DELAY_VARIABLE, "TERMINAL_WIDTH", "TZ")
"""Variables whose names begin so act before or during the imports: a command with one of them gets an interpreter."""
AT_START = dict(os.environ)
NO_EFFECT = (("PYTHONPATH", str(ROOT)), ("PYTHONFAULTHANDLER", "1"))
"""Those that a forked command obeys too."""
PLAIN = (True, None, None, None, -1)
"""Arguments of `Popen` where a test wants no other user."""


class Nursery:
    """The process that forks, and the socket to it. It ends when the test process does, since its socket closes.

    program: the options of the interpreter that make it serve a socket (`serve_forks`), whose number comes last. None:
    a fork of this process, which must have one thread.
    """

    def __init__(self, program: Sequence[str] | None) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None
        with theirs:
            if program is not None:
                self._process = subprocess.Popen(
                    [sys.executable, *program, str(theirs.fileno())],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            elif os.fork() == 0:
                self._socket.close()
                # The output of this process ends with this process.
                nowhere = os.open(os.devnull, os.O_RDWR)
                for number in range(2):
                    os.dup2(nowhere, number)
                serve_forks(theirs.detach(), become_command)
        assert self._socket.recv(16) == b"ready"
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._owner = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._socket.close()
            if self._process is not None:
                self._process.wait()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        group: int | None,
        descriptors: Mapping[int, int],
    ) -> int:
        """Starts a command as a child of this process. Returns its process number.

        group: its process group; None: it begins a session. descriptors: the number of each descriptor in the command,
        and that here.
        """
        request = json.dumps([[*arguments], dict(environment), folder, group, [*descriptors]]).encode()
        with self._lock:
            # The forked process is a grandchild whose parent ends at once; then it becomes the child of this process.
            self._become_subreaper(True)
            try:
                socket.send_fds(self._socket, [request], [*descriptors.values()])
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
        streams, special, (start_new_session, process_group) = pipes[:6], tuple(pipes[6:11]), pipes[11:]
        environment = os.environ if env is None else env
        named = self.forked_arguments(args)
        ignores = signal.SIG_IGN in map(signal.getsignal, (signal.SIGHUP, signal.SIGINT))
        is_special = preexec_fn or shell or special != PLAIN or process_group != -1 or ignores
        if named is None or is_special or has_effect_at_import(environment):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        kind = type(self)
        if kind.nursery is None:
            # Not by this class: the process that forks is an interpreter.
            with PlainPopen():
                kind.nursery = Nursery(self.program)
        ours = [each if each != -1 else number for number, each in enumerate((streams[0], streams[3], streams[5]))]
        descriptors = {**dict(enumerate(ours)), **{each: each for each in pass_fds}}
        group = None if start_new_session else os.getpgrp()
        self.pid = kind.nursery.start(named, environment, os.fspath(cwd or os.getcwd()), group, descriptors)
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
    """Whether a variable that was not there at the start of the tests changes what an interpreter or an import does."""
    return any(
        AT_START.get(name) != value
        for name, value in environment.items()
        if name.startswith(AT_IMPORT) and (name, value) not in NO_EFFECT
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
        data, descriptors, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, DESCRIPTORS_MAX)
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
                arguments, environment, folder, group, numbers = json.loads(data)
                take_over(dict(zip(numbers, descriptors, strict=True)), environment, folder, group)
                become(arguments)
            os.write(write, b"%d" % child)
            os._exit(0)
        os.waitpid(between, 0)
        asked.send(os.read(read, 16))
        for each in (read, write, *descriptors):
            os.close(each)


def take_over(descriptors: Mapping[int, int], environment: Mapping[str, str], folder: str, group: int | None) -> None:
    """Gives this process what the one that was asked for begins with; see `Nursery.start`."""
    if group is None:
        os.setsid()
    else:
        with suppress(PermissionError):
            os.setpgid(0, group)
    # First out of the way of each other.
    moved = {number: fcntl.fcntl(each, fcntl.F_DUPFD, 3 + max(descriptors)) for number, each in descriptors.items()}
    for each in descriptors.values():
        os.close(each)
    for number, each in moved.items():
        os.dup2(each, number)
        os.close(each)
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
    if "PYTHONFAULTHANDLER" in os.environ:
        faulthandler.enable()
    if "--workers" in arguments:
        # The worker processes of this node are forked too, from a process that is forked while this one has one thread.
        ForkedPopen.nursery = Nursery(None)
        subprocess.Popen = ForkedPopen  # type: ignore[misc]
    sys.argv = ["stream-node", *arguments]
    sys.exit(app.run(partial(program(), prog_name="stream-node")))


if __name__ == "__main__":
    main(int(sys.argv[1]))
