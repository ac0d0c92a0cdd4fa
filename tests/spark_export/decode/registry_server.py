"""A schema registry for tests: a real HTTP server on a free port that answers as Confluent's does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryServer:
    """What the server has, and what it was asked.

    answers: JSON objects by path. failing: how many requests from now on get the status `failure`. authorization: the
    header without which a request is refused; None accepts all. absent: the body of an answer 404. moved_to: where
    requests are redirected; None: nowhere.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.seen: list[str | None] = []
        self.failing, self.failure = 0, 503
        self.authorization: str | None = None
        self.moved_to: str | None = None
        self.absent = b'{"error_code": 40403, "message": "Schema not found"}'

    def add(self, number: int, schema: str, kind: str | None = None, references: Any = None, form: str = "") -> None:
        answer: dict[str, Any] = {"schema": schema}
        if kind is not None:
            answer["schemaType"] = kind
        if references is not None:
            answer["references"] = references
        self.answers[f"/schemas/ids/{number}{form}"] = answer

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        self.seen.append(authorization)
        if self.moved_to is not None:
            return 307, {"Location": self.moved_to + path}, b""
        if self.failing:
            self.failing -= 1
            return self.failure, {}, b'{"error_code": 50001, "message": "later"}'
        if self.authorization is not None and authorization != self.authorization:
            return 401, {}, b'{"error_code": 401, "message": "Unauthorized"}'
        if path not in self.answers:
            return 404, {}, self.absent
        found = self.answers[path]
        return 200, {}, found if isinstance(found, bytes) else json.dumps(found).encode()


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = state.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = RegistryServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
