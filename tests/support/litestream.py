"""Litestream beside a node: started, killed, asked to restore; and a load whose confirms are known with their times.

Skips where the program `litestream` is not on PATH.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from stream_service.protocol import PUSH, PushRequest, Status
from stream_storage.sqlite.database import FILE_NAME
from tests.support.stream_peer import StreamPeer, stream_peer

PATIENCE_S = 60.0
STREAM = "load"
SYNC_INTERVAL_S = 1.0
CONFIG = """\
dbs:
  - path: {database}
    truncate-page-n: 0
    monitor-interval: 250ms
    replica:
      type: file
      path: {replica}
      sync-interval: {interval_s:g}s
"""


def need_litestream() -> str:
    found = shutil.which("litestream")
    if found is None:
        pytest.skip("litestream is not installed")
    return found


class Litestream:
    """One Litestream that copies the database of a data directory into a folder."""

    def __init__(self, data_dir: Path, folder: Path) -> None:
        self.database = data_dir / FILE_NAME
        self.replica = folder / "replica"
        self._program = need_litestream()
        self._config = folder / "litestream.yml"
        self._log = folder / "litestream.log"
        self._config.write_text(CONFIG.format(database=self.database, replica=self.replica, interval_s=SYNC_INTERVAL_S))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "replicate", "-config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(),
            )

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self, number: signal.Signals) -> int:
        """Ends the process with a signal, and returns its exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def restore(self, target: Path) -> None:
        """Restores the newest state of the copy into the file `target`."""
        done = subprocess.run(
            [self._program, "restore", "-config", str(self._config), "-o", str(target), str(self.database)],
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            env=environment(),
        )
        assert done.returncode == 0, done.stderr.decode()

    def pieces(self) -> dict[str, int]:
        """The pieces of the copy: name, with the folder of its level, and size in bytes."""
        found = {}
        for path in self.replica.glob("ltx/*/*.ltx"):
            try:
                found[f"{path.parent.name}/{path.name}"] = path.stat().st_size
            except FileNotFoundError:
                # Litestream has joined this piece with others meanwhile.
                continue
        return found

    def newest(self) -> int:
        """The number of the newest transaction in the copy; 0 if the copy is empty."""
        return max((int(name.rpartition("-")[2].removesuffix(".ltx"), 16) for name in self.pieces()), default=0)

    async def wait_newer(self, than: int) -> None:
        """Waits until the copy has a transaction with a higher number."""
        with trio.fail_after(PATIENCE_S):
            while self.newest() <= than:
                assert self._process is not None
                assert self._process.poll() is None, self._log.read_text()
                await trio.sleep(0.02)


@contextmanager
def litestream_beside(data_dir: Path, folder: Path) -> Iterator[Litestream]:
    """A Litestream that is killed at the end, if it still runs."""
    copier = Litestream(data_dir, folder)
    try:
        yield copier
    finally:
        if copier.runs:
            copier.end(signal.SIGKILL)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}


class Confirmed(NamedTuple):
    """A confirmed message. confirmed_s: when the confirm came, by the monotonic clock."""

    data: bytes
    confirmed_s: float


class Load:
    """Pushes numbered messages to STREAM in windows, until the node is gone or `end` is called.

    name: the beginning of each message, so that messages of two loads differ. first_index: the index that the first
    message must get. rest_s: a pause before each half of a window, so that a long run does not store too much.
    confirmed: the confirmed messages, in the order of their indexes. sent: all messages.
    """

    def __init__(self, name: str, first_index: int, window: int, rest_s: float = 0.0) -> None:
        self.sent: list[bytes] = []
        self.confirmed: list[Confirmed] = []
        self._name = name
        self._first_index = first_index
        self._window = window
        self._rest_s = rest_s
        self._ending = False

    def end(self) -> None:
        """Sends nothing more. `run` returns when everything is confirmed."""
        self._ending = True

    async def run(self, address: str) -> None:
        async with stream_peer(address) as peer:
            route = await peer.create(STREAM)
            try:
                while not self._ending or len(self.confirmed) < len(self.sent):
                    missing = 0 if self._ending else len(self.confirmed) + self._window - len(self.sent)
                    # Half a window at once: one system call for many pushes.
                    if missing >= self._window // 2:
                        await trio.sleep(self._rest_s)
                        await peer.stream.send_all(b"".join(peer.frame(route, self._next()) for _ in range(missing)))
                    await self._take_confirm(peer)
            except (trio.BrokenResourceError, AssertionError):
                await self._take_the_rest(peer)

    async def wait_confirmed(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while len(self.confirmed) < count:
                await trio.sleep(0.01)

    def _next(self) -> bytes:
        number = len(self.sent)
        data = f"{self._name} {number} ".encode().ljust(100 + number % 100, b".")
        self.sent.append(data)
        return PUSH.encode_request(PushRequest(number, data))

    async def _take_confirm(self, peer: StreamPeer) -> None:
        confirm = PUSH.decode_response((await peer.receive()).payload)
        number = len(self.confirmed)
        expected = (Status.OK, number, self._first_index + number)
        if (confirm.status, confirm.request_id, confirm.index) != expected:
            pytest.fail(f"{confirm} in place of {expected}")
        self.confirmed.append(Confirmed(self.sent[number], time.monotonic()))

    async def _take_the_rest(self, peer: StreamPeer) -> None:
        """Sending has failed, but confirms may still be there to be read."""
        try:
            while True:
                await self._take_confirm(peer)
        except (trio.BrokenResourceError, AssertionError):
            return


class Loss(NamedTuple):
    """What a restore has lost. messages: confirmed messages that are missing. age_s: how long before the kill the
    oldest of them was confirmed; 0 if none is missing."""

    messages: int
    age_s: float


def loss_of(stored: list[bytes], before: list[bytes], load: Load, killed_s: float) -> Loss:
    """Compares what is stored with what was stored before a load, and with what the load had confirmed at its end.

    Everything stored must be what was pushed, in its order; only the end may be missing. killed_s: the monotonic time
    of the kill.
    """
    pushed = before + load.sent
    assert stored == pushed[: len(stored)], "what is stored is not the beginning of what was pushed"
    assert len(stored) >= len(before), f"{len(before) - len(stored)} messages from before the load are missing"
    missing = load.confirmed[len(stored) - len(before) :]
    return Loss(len(missing), killed_s - missing[0].confirmed_s if missing else 0.0)
