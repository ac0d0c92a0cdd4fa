"""A client of grpcio, a thread for each call. Argument: ENCODING. It does what its standard input says, one act a line,
as `peers.py` writes them. Messages stay bytes."""

from __future__ import annotations

import base64
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import grpc  # type: ignore[import-untyped]

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
COMPRESSIONS = {"identity": grpc.Compression.NoCompression, "gzip": grpc.Compression.Gzip}
saying = threading.Lock()


def say(*fields: object) -> None:
    with saying:
        sys.stdout.write(" ".join(map(str, fields)) + "\n")
        sys.stdout.flush()


class Call:
    def __init__(self, channel: Any, number: str, path: str) -> None:
        self.requests: SimpleQueue[bytes | None] = SimpleQueue()
        self.call = channel.stream_stream(path)(iter(self.requests.get, None))
        threading.Thread(target=self._read, args=(number,)).start()

    def _read(self, number: str) -> None:
        with suppress(grpc.RpcError):
            for answer in self.call:
                say("answer", number, base64.b64encode(answer).decode())
        # grpcio waits for the next request also after the end.
        self.requests.put(None)
        say("done", number, self.call.code().value[0])


def main(encoding: str) -> None:
    channels: dict[str, Any] = {}
    calls: dict[str, Call] = {}
    for line in sys.stdin:
        act, key, *fields = line.rstrip("\n").split(" ")
        if act == "open":
            port, path = fields
            if port not in channels:
                compression = COMPRESSIONS[encoding]
                channels[port] = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS, compression=compression)
            calls[key] = Call(channels[port], key, path)
        elif act == "send":
            calls[key].requests.put(base64.b64decode(fields[0]))
        elif act == "end":
            calls[key].requests.put(None)
        elif act == "cancel":
            calls[key].call.cancel()
        else:
            if key in channels:
                channels.pop(key).close()
            say("closed", key)


main(sys.argv[1])
