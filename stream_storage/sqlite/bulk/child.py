"""Starts the child process for bulk reads (`stream_storage.sqlite.bulk.child_main`), sends its requests and ends it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

from stream_storage.sqlite.bulk.child_main import ANSWER
from stream_storage.sqlite.bulk.shared_memory import SharedMemory

ANSWER_TIMEOUT_S = 30.0
"""How long the node waits for an answer. A page takes tens of milliseconds, and a busy database up to 5 s."""
END_TIMEOUT_S = 5.0

Answer: TypeAlias = tuple[int, tuple[int, int, int, int, int], bytes]
"""The status; created_us, first_index, next_index, start and rows; the page or the error text, as bytes."""


class BulkChild:
    """A running child process that reads one database file. One thread uses it. Raises OSError at the start."""

    def __init__(self, path: Path) -> None:
        # The child has to import this package from the folder from which this process imported it.
        home = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._memory = SharedMemory.create()
        descriptor = self._memory.descriptor
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stream_storage.sqlite.bulk.child_main", str(path.absolute()), str(descriptor)],
                pass_fds=(descriptor,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": search},
                # Ctrl-C must reach the node only, which ends the child after the last bulk read is done. So the child
                # gets its own process group. The child stays in the session of the node: Linux may share the processor
                # equally between sessions, and then the niceness of the child would count only within its session
                # (sched(7), autogroup).
                process_group=0,
            )
        except BaseException:
            self._memory.close()
            raise
        assert self._process.stdin is not None, "it was started with pipes"
        assert self._process.stdout is not None, "it was started with pipes"
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def ask(self, request: bytes) -> Answer:
        """Returns the answer to a request. Raises OSError, TimeoutError, EOFError; then the caller must call `end`."""
        self._requests.write(request)
        status, created_us, first, following, start, rows, size = ANSWER.unpack(self._read(ANSWER.size))
        return status, (created_us, first, following, start, rows), bytes(self._memory.view(size))

    def end(self) -> None:
        """Ends the child process, and kills it if it does not end by itself. Called once."""
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._memory.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, size: int) -> bytes:
        # select() takes no descriptor above 1,023, and a node may have ten thousand connections, so this method uses
        # poll().
        ready = select.poll()
        ready.register(self._answers, select.POLLIN)
        taken = b""
        while len(taken) < size:
            if not ready.poll(ANSWER_TIMEOUT_S * 1000):
                raise TimeoutError(f"no answer in {ANSWER_TIMEOUT_S} s")
            chunk = os.read(self._answers.fileno(), size - len(taken))
            if not chunk:
                raise EOFError(f"exit code {self._process.poll()}")
            taken += chunk
        return taken
