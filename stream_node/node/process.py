"""Runs a node in a child process, with the real command and real signals. The demo, the bench and the tests use it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ockam.actors.address import split_host_port


class NodeNotStarted(Exception):
    """A node of a child process, or of `stream_node.testing`, ended before it listened. The text has the reason, such
    as the exit code, and the end of its log."""


class NodeProcess:
    """The command `stream-node serve` in a child process. As a context manager, it kills the child at the end.
    Between two starts, nobody else gets the port of the node. address, http, grpc: where the node has listened."""

    def __init__(
        self,
        data_dir: Path,
        *,
        listen: str = "127.0.0.1:0",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,  # additional variables
        log_file: Path | None = None,  # for the child's stderr; None: next to the data directory
    ) -> None:
        self.data_dir = data_dir
        self.listen = listen
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self.log_file = log_file if log_file is not None else data_dir.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self._release_port: Callable[[], object] = lambda: None
        self.address = ""
        self.http: list[str] = []
        self.grpc: list[str] = []

    def __enter__(self) -> NodeProcess:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._release_port()

    @property
    def pid(self) -> int:
        return self._running().pid

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "stream_node", "serve", "--data-dir", str(self.data_dir)]
        return [*serve, "--listen", self.address or self.listen, *self._arguments]

    def start(self) -> None:
        """Starts the node and waits until it listens, at the same address each time. Raises NodeNotStarted."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        assert self._process.stdout is not None
        try:
            # The first line of the output is the report that the node listens.
            line = self._process.stdout.readline()
        except BaseException:
            self.kill()
            raise
        if not line:
            code = self._process.wait()
            self._forget()
            lines = self.log_file.read_text(errors="replace").splitlines()
            raise NodeNotStarted(f"the node ended with {code}: {lines[-1] if lines else 'it wrote nothing'}")
        told = json.loads(line)
        self.address = told["addresses"][0]
        self.http = told.get("http", [])
        self.grpc = told.get("grpc", [])
        self._release_port()

    def stop(self, timeout_s: float = 30.0) -> int:
        """Stops the node (SIGTERM) and returns its exit code. Kills it after `timeout_s` seconds."""
        self._running().terminate()
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._running().kill()
            return self.wait(None)

    def kill(self) -> None:
        """Kills the node (SIGKILL), as a crash would. Does nothing if the node is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def signal(self, number: signal.Signals) -> None:
        self._running().send_signal(number)

    def wait(self, timeout_s: float | None = 30.0) -> int:
        """Waits for the end of the node (None: without a limit), and returns its exit code. Raises TimeoutExpired."""
        code = self._running().wait(timeout_s)
        self._forget()
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the node is not running")
        return self._process

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        self._release_port()
        held = hold_port(self.address)
        if held is not None:
            self._release_port = weakref.finalize(self, held.close)


def hold_port(address: str) -> socket.socket | None:
    """Takes the port of a `host:port` at which nobody listens, so that no outgoing connection begins there.
    A node can listen there all the same. Returns a socket that is to be closed; None if that does not work here."""
    # The system can also choose a port that it has given to the node for an outgoing connection. If it did so while the
    # node is down, the node could not listen again.
    if sys.platform != "linux" or not address:
        return None
    host, port = split_host_port(address)
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # With this option on both sides, Linux lets a second socket have the port while the first does not listen.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        return None
    return held


@contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Makes these signals end the block as Ctrl-C does, so that the block stops its nodes and removes their data.
    A signal becomes SIGINT: trio then cancels its tasks, and the tasks clean up. After a signal, the end of the block
    raises SystemExit with the exit code 128 plus the number of the signal."""
    told: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not told:
            told.append(number)
            signal.raise_signal(signal.SIGINT)

    handlers = [(number, signal.signal(number, interrupt)) for number in numbers]
    # A shell starts a background command (`&`) with SIGINT ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except BaseException:
        if told:
            sys.exit(128 + told[0])
        raise
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
