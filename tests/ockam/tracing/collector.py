"""A collector of traces: an HTTP server on loopback that reads OTLP with the protocol's own classes. Needs the extra
`otel`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.served import PATIENCE_S


class Seen(NamedTuple):
    """One span as it came over HTTP. Ids are in hexadecimal digits; `parent` is empty for the root of a trace."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, str | int]


class Collector:
    """Takes spans at `url`. paths, tenants: the paths and the headers `x-tenant` of all requests."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.spans: list[Seen] = []
        self.paths: set[str] = set()
        self.tenants: set[str | None] = set()
        self.requests = 0

    def take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    times = span.start_time_unix_nano, span.end_time_unix_nano
                    # 2 is STATUS_CODE_ERROR.
                    self.spans.append(
                        Seen(names["service.name"], span.name, *ids, *times, span.status.code == 2, values)
                    )

    def wait(self, count: int) -> list[Seen]:
        """Returns the spans when this number of them has come."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.spans) < count:
            assert time.monotonic() < deadline, f"{len(self.spans)} of {count} spans: {self.spans}"
            time.sleep(0.01)
        return self.spans

    def named(self, name: str) -> Seen:
        """Returns the only span of this name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found


@contextmanager
def collecting(*, hold: threading.Event | None = None, port: int = 0) -> Iterator[Collector]:
    """A collector that runs during the block.

    hold: requests get no answer before it is set. port: 0 picks a free one.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests += 1
            collector.tenants.add(self.headers["x-tenant"])
            if hold is not None:
                hold.wait(PATIENCE_S)
            collector.take(self.path, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        collector = Collector(server)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            if hold is not None:
                hold.set()
            server.shutdown()
            thread.join()
