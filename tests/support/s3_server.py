"""A real S3 server (moto's) in a process of its own, and a proxy before it that makes the faults of a network.

moto keeps objects in memory, answers `If-None-Match` and `If-Match` as S3 does, and takes any credentials. It looks at
a condition and then stores, so that two requests at once may both find the condition true: one conditional request is
served at a time here, which makes look and store one step, as in S3.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVER = """
import logging, sys, threading
from moto.server import DomainDispatcherApplication, ThreadedMotoServer

conditional = threading.Lock()
serve = DomainDispatcherApplication.__call__

def serve_alone(application, environ, start_response):
    if "HTTP_IF_MATCH" not in environ and "HTTP_IF_NONE_MATCH" not in environ:
        return serve(application, environ, start_response)
    with conditional:
        return serve(application, environ, start_response)

DomainDispatcherApplication.__call__ = serve_alone
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret-of-someone", "AWS_REGION": "us-east-1"}
HIDDEN = {"AWS_ACCESS_KEY_ID": "someone-else", "AWS_SECRET_ACCESS_KEY": "hidden-word"}
KEYS = {each["AWS_ACCESS_KEY_ID"]: each["AWS_SECRET_ACCESS_KEY"] for each in (CREDENTIALS, HIDDEN)}
"""What SeaweedFS takes; moto takes any keys."""


class S3Server:
    """The server of `running_s3`. address: its host and port."""

    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def make_bucket(self, name: str) -> str:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request).close()
        return name


@contextmanager
def running_s3() -> Iterator[S3Server]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield S3Server(process.stdout.readline().strip())
        finally:
            process.kill()


@dataclass(frozen=True)
class Request:
    """A request at the proxy. path: of the bucket and the object, escaped, with the query."""

    method: str
    path: str
    conditional: bool


@dataclass(frozen=True)
class Fault:
    """What the proxy does with a request. status: the answer in place of the server's; 0 for the connection's end, once
    the server has done what was asked; None for none of both. wait: what the proxy waits for before it goes on."""

    status: int | None = None
    code: str = "SlowDown"
    wait: threading.Event | None = None


class FaultProxy:
    """The proxy of `fault_proxy`. choose: gives the fault of a request, or None. The test sets it, and reads `seen`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.choose: Callable[[Request], Fault | None] = lambda request: None
        self.seen: list[Request] = []

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"


@contextmanager
def fault_proxy(server: S3Server) -> Iterator[FaultProxy]:
    proxy: FaultProxy

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = _body(self)
            conditional = any(name in self.headers for name in ("If-Match", "If-None-Match"))
            request = Request(self.command, self.path, conditional)
            proxy.seen.append(request)
            fault = proxy.choose(request)
            if fault is not None and fault.wait is not None:
                fault.wait.wait(60)
            if fault is not None and fault.status:
                self._answer(fault.status, b"<Error><Code>%s</Code></Error>" % fault.code.encode(), [])
                return
            passed = http.client.HTTPConnection(server.address, timeout=60)
            passed.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "expect"):
                    passed.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                passed.putheader("Content-Length", str(len(body)))
            passed.endheaders(body or None)
            answer = passed.getresponse()
            content = answer.read()
            passed.close()
            if fault is not None and fault.status == 0:
                self.close_connection = True
                return
            self._answer(answer.status, content, answer.getheaders())

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def _answer(self, status: int, content: bytes, headers: list[tuple[str, str]]) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length":
                    length = value if self.command == "HEAD" else length
                elif name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that is killed breaks its connection, which is no news."""

    listening = Server(("127.0.0.1", 0), Handler)
    host, port = listening.server_address[:2]
    proxy = FaultProxy(f"{host!s}:{port}")
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    """The body of the request that a handler has begun to read."""
    if handler.headers.get("Expect", "").lower() == "100-continue":
        handler.send_response_only(100)
        handler.end_headers()
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    chunks = []
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass
    return b"".join(chunks)
