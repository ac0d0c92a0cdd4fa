"""A client of grpcio's asyncio. Argument: ENCODING. It does what its standard input says, one act a line, as `peers.py`
writes them. Messages stay bytes."""

from __future__ import annotations

import asyncio
import base64
import sys
from contextlib import suppress
from typing import Any

import grpc  # type: ignore[import-untyped]

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
COMPRESSIONS = {"identity": grpc.Compression.NoCompression, "gzip": grpc.Compression.Gzip}
LINE_BYTES_MAX = 1 << 28


def say(*fields: object) -> None:
    sys.stdout.write(" ".join(map(str, fields)) + "\n")
    sys.stdout.flush()


class Call:
    def __init__(self, channel: Any, number: str, path: str) -> None:
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.call = channel.stream_stream(path)()
        self.tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read(number))]

    async def _write(self) -> None:
        # A call that has ended takes no more requests.
        with suppress(grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            while (request := await self.requests.get()) is not None:
                await self.call.write(request)
            await self.call.done_writing()

    async def _read(self, number: str) -> None:
        with suppress(grpc.RpcError, asyncio.CancelledError):
            while (answer := await self.call.read()) is not grpc.aio.EOF:
                say("answer", number, base64.b64encode(answer).decode())
        say("done", number, (await self.call.code()).value[0])


async def main(encoding: str) -> None:
    channels: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    lines = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async for line in lines:
        act, key, *fields = line.decode().rstrip("\n").split(" ")
        if act == "open":
            port, path = fields
            if port not in channels:
                channels[port] = grpc.aio.insecure_channel(
                    f"127.0.0.1:{port}", options=OPTIONS, compression=COMPRESSIONS[encoding]
                )
            calls[key] = Call(channels[port], key, path)
        elif act == "send":
            calls[key].requests.put_nowait(base64.b64decode(fields[0]))
        elif act == "end":
            calls[key].requests.put_nowait(None)
        elif act == "cancel":
            calls[key].call.cancel()
        else:
            if key in channels:
                await channels.pop(key).close()
            say("closed", key)


asyncio.run(main(sys.argv[1]))
