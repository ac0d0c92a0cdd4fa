"""Runs a program that makes gRPC calls with a library that nobody here wrote.

The program reads one call a line and writes one result a line; messages are base64, and what is absent is `-`:

    PATH DEADLINE_S close|cancel UNTIL REQUEST…        STATUS ANSWER…

All requests are sent at once. The client closes its half, or cancels, as soon as the answer UNTIL has come; `any` is
the first answer, and with `-` it waits for none.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

HERE = Path(__file__).parent
DEADLINE_S = 60
GRPC_JS = Path(os.environ.get("GRPC_JS_FOLDER", ".")) / "node_modules"
"""Below the folder in which `npm install @grpc/grpc-js` was called."""
GRPC_JAVA = Path(os.environ.get("GRPC_JAVA_JAR", "none.jar"))
"""The sdk-….jar of the PyPI package hedera-sdk-py, which has grpc-java with netty."""


class ForeignKind(NamedTuple):
    command: Sequence[str]
    environment: dict[str, str]
    missing: str
    """Why the client cannot be run here; "" if it can."""


KINDS = {
    "grpc-js": ForeignKind(
        ("node", str(HERE / "grpc_js.js")),
        {"NODE_PATH": str(GRPC_JS)},
        ""
        if (GRPC_JS / "@grpc" / "grpc-js").is_dir() and shutil.which("node")
        else "no @grpc/grpc-js: npm install it, name the folder by GRPC_JS_FOLDER",
    ),
    "grpc-java": ForeignKind(
        ("java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", str(GRPC_JAVA), str(HERE / "GrpcJava.java")),
        {},
        ""
        if GRPC_JAVA.is_file() and shutil.which("javac")
        else "no grpc-java: a JDK, and GRPC_JAVA_JAR of hedera-sdk-py",
    ),
}


class Result(NamedTuple):
    status: int
    answers: list[bytes]


class ForeignClient:
    """One running program, with one connection."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._received = bytearray()

    async def call(
        self, path: str, requests: Sequence[bytes] = (b"",), *, until: bytes | str = "-", ending: str = "close"
    ) -> Result:
        until = until if isinstance(until, str) else base64.b64encode(until).decode()
        fields = [path, str(DEADLINE_S), ending, until, *(base64.b64encode(each).decode() for each in requests)]
        assert self._process.stdin is not None
        await self._process.stdin.send_all(" ".join(fields).encode() + b"\n")
        status, *answers = (await self._read_line()).split(b" ")
        return Result(int(status), [base64.b64decode(each) for each in answers])

    async def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        while (end := self._received.find(b"\n")) < 0:
            data = await self._process.stdout.receive_some()
            assert data, "the client has ended"
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


@asynccontextmanager
async def foreign_client(kind: ForeignKind, port: int, encoding: str) -> AsyncIterator[ForeignClient]:
    async with trio.open_nursery() as nursery:
        run = partial(
            trio.run_process,
            [*kind.command, str(port), encoding],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **kind.environment},
        )
        process: trio.Process = await nursery.start(run)
        yield ForeignClient(process)
        # The end of its input ends the program, with 0 if all went well.
        assert process.stdin is not None
        await process.stdin.aclose()
