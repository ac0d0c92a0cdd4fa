"""Goal: what the operator sees of traces, and which variables hold.

Method: real nodes, whose log and metrics are read, and collectors that come and go.
"""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import NoReturn

import anyio
import pytest
import trio

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from ockam.tracing.opening import open_tracing
from stream_client import connect
from stream_client.blocking import connect as connect_blocking
from stream_node.node.process import NodeProcess
from stream_node.node.server import end_traces
from tests.ockam.tracing.collector import collecting
from tests.support.served import PATIENCE_S

SAMPLE = re.compile(r'^stream_node_trace_spans_total\{result="(\w+)"\} (\S+)$', re.MULTILINE)


def spans_of(node: NodeProcess) -> dict[str, float]:
    """The numbers of spans by result, as the metrics have them."""
    with urllib.request.urlopen(f"http://{node.http[0]}/metrics", timeout=PATIENCE_S) as answer:
        return {result: float(value) for result, value in SAMPLE.findall(answer.read().decode())}


def wait_for(node: NodeProcess, **wanted: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := spans_of(node)) != wanted:
        assert time.monotonic() < deadline, f"{found}, not {wanted}"
        time.sleep(0.02)


def test_a_collector_that_comes_back_gets_spans_again(tmp_path: Path) -> None:
    """Goal: the log says once that spans are lost, and once that it is over; the metrics count them. Method: the node's
    collector is a port that nobody listens at, and later one that listens there; the client has another collector."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    variables = {
        "STREAM_NODE_TRACES": f"http://127.0.0.1:{port}",
        "STREAM_NODE_HTTP": "127.0.0.1:0",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2",
    }
    with (
        NodeProcess(tmp_path / "data", environment=variables) as node,
        collecting() as elsewhere,
        connect_blocking(node.address, traces=elsewhere.url) as client,
    ):
        stream = client.create("orders")
        for number in range(3):
            stream.push(b"lost")
            wait_for(node, exported=0, failed=4 * (number + 1), dropped=0)
        with collecting(port=port) as collector:
            for _ in range(2):
                stream.push(b"seen")
            assert len(collector.wait(8)) == 8
            wait_for(node, exported=8, failed=12, dropped=0)
        assert node.stop() == 0
        log = node.log_file.read_text()
    assert [log.count(event) for event in ("traces_not_exported", "traces_exported_again", "traces_ended")] == [1, 1, 1]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_variables_of_opentelemetry_name_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Goal: `traces=True` is what OTEL_EXPORTER_OTLP_ENDPOINT says, under both event loops; the name of the service and
    headers, too. Method: a node that does not trace, and a client with these variables."""

    async def push(address: str) -> None:
        async with connect(address, traces=True) as client:
            assert await (await client.create("orders")).push(b"x") == 0

    with collecting() as collector, NodeProcess(tmp_path / "data") as node:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
        anyio.run(push, node.address, backend=backend)
        (span,) = collector.wait(1)
    assert (span.service, span.name) == ("shop", "push orders")
    assert collector.tenants == {"blue"}


async def test_a_stop_ends_the_traces_without_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim: a node that stops when the system has no room for one more thread ends as it does otherwise. Method: what
    starts threads raises what Python raises then."""

    def fail(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    tracing = open_tracing("http://127.0.0.1:1", "test")
    with monkeypatch.context() as patch:
        patch.setattr(trio.to_thread, "run_sync", fail)
        patch.setattr(threading.Thread, "start", fail)
        await end_traces(tracing)
    tracing.close()
