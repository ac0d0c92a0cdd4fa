"""Servers that are no stream nodes, in threads of the test: each answers what its own clients would send."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ockam.actors.address import local, split_host_port
from ockam.actors.message import HERE, Message
from ockam.protocol import error_payload
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire_head import HEAD


@contextmanager
def http_server() -> Iterator[str]:
    """The standard library's own; it waits for the end of a line, and answers then."""

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield "{}:{}".format(*server.server_address)
        server.shutdown()
        serving.join()


def tls(connection: socket.socket) -> None:
    """OpenSSL's server. It has no certificate, so it refuses every client, in the words of TLS."""
    with ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).wrap_socket(connection, server_side=True) as wrapped:
        wrapped.recv(1)


def redis(connection: socket.socket) -> None:
    """Waits for a line, and does not know its command."""
    received = b""
    while b"\n" not in received:
        chunk = connection.recv(100)
        if not chunk:
            return
        received += chunk
    connection.sendall(b"-ERR wrong number of arguments for 'get' command\r\n")


def ssh(connection: socket.socket) -> None:
    """Says at once what it is."""
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    connection.recv(1)


def silent(connection: socket.socket) -> None:
    """Reads, and says nothing."""
    while connection.recv(1000):
        pass


def greets_and_refuses_once(connection: socket.socket) -> None:
    """Speaks as a node of the head framing does, answers the first request with an `error`, and nothing after that."""
    reader, writer, received = FrameReader(HEAD, HERE), FrameWriter(HEAD), b""
    connection.sendall(HEAD.hello)
    answered = False
    while chunk := connection.recv(1000):
        received += chunk
        if answered or len(received) < 2:
            continue
        messages = reader.feed(received.removeprefix(HEAD.hello))
        received = HEAD.hello
        for message in messages[:1]:
            answered = True
            answer = Message((local("-"), *message.return_route), (), error_payload("no"))
            connection.sendall(writer.encode([answer], lambda error: None)[1])


def ends_at_once(connection: socket.socket) -> None:
    """Takes connections, and no more."""


@contextmanager
def answering(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that does so with each connection, which it then closes."""
    connections: list[socket.socket] = []

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                serve(connection)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield "{}:{}".format(*listening.getsockname())
    finally:
        # Closing alone does not end an `accept` that waits.
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listening.close()
        for connection in connections:
            connection.close()


class Lazy:
    """Stands still until it has been looked into, and passes on to a node from then on: slow, and right."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._connections = 0
        self._awake = threading.Event()

    def __call__(self, connection: socket.socket) -> None:
        self._connections += 1
        if self._connections > 1:
            silent(connection)
            self._awake.set()
            return
        self._awake.wait()
        with socket.create_connection(split_host_port(self._node)) as node:
            back = threading.Thread(target=_copy, args=(node, connection))
            back.start()
            _copy(connection, node)
            node.shutdown(socket.SHUT_RDWR)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        return
