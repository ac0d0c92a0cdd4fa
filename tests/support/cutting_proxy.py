"""CuttingProxy: stands between a client and a PostgreSQL server, and cuts a connection at a COMMIT."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal, Self

READY = b"Z\0\0\0\5"
"""The beginning of the last message of an answer: the server is ready for the next request."""
COMMIT = b"COMMIT\0"
"""In a request this is the text of the command, in an answer the tag of a command that is complete."""


class CuttingProxy:
    """A proxy on a port of its own. A context manager.

    cut: where the next COMMIT is cut: "before" the server gets it, or "after" the server has done it, when the answer
    is on its way; None: nowhere. Back to None after one cut.
    cuts: the number of cuts so far. answers: the number of whole answers of the server so far.
    refuse_after_cut: whether no connection is made after a cut, until `listen_again`.
    """

    def __init__(self, server_port: int) -> None:
        self.cut: Literal["before", "after"] | None = None
        self.cuts = 0
        self.answers = 0
        self.refuse_after_cut = False
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        for each in (self._listener, *self._open):
            _end(each)

    def listen_again(self) -> None:
        """Takes connections again, after a cut that has ended that."""
        self.refuse_after_cut = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server, "before"), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, "after"), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, place: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.cut == place and COMMIT in data:
                    self.cut = None
                    self.cuts += 1
                    if self.refuse_after_cut:
                        _end(self._listener)
                    break
                if place == "after":
                    self.answers += data.count(READY)
                target.sendall(data)
        _end(source)
        _end(target)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
