"""Goal: a push is one trace, from the program through the client and the node to the commit.

Method: a real node process, a real client and a collector that is an HTTP server. What the collector has received over
HTTP is compared, and nothing inside the node or the client.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace import TracerProvider

from ockam.tracing.opening import open_tracing
from ockam.tracing.spans import WAITING_MAX
from stream_client import RequestRefused, connect
from stream_client.blocking import connect as connect_blocking
from stream_node.node.process import NodeProcess
from tests.ockam.tracing.collector import Collector, Seen, collecting

NODE_SPANS = {"receive", "wait in batch", "commit", "confirm"}


def tracing_to(url: str, **others: str) -> dict[str, str]:
    """The variables of a node that sends its spans to this URL, every 50 ms."""
    return {"STREAM_NODE_TRACES": url, "OTEL_BSP_SCHEDULE_DELAY": "50", **others}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture
def node(tmp_path: Path, collector: Collector) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", environment=tracing_to(collector.url)) as running:
        yield running


def check_trace(spans: list[Seen], client_name: str) -> None:
    """One trace: the client's span is the root, `receive` is its child, the others are children of `receive`, and no
    span ends before it begins or leaves its parent by more than the clocks of one machine allow."""
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {client_name, *NODE_SPANS}, spans
    assert len({span.trace for span in spans}) == 1
    assert len({span.span for span in spans}) == len(spans)
    push, receive = by_name[client_name], by_name["receive"]
    assert (push.service, push.parent) == ("stream-client", "")
    assert (receive.service, receive.parent) == ("stream-node", push.span)
    assert {by_name[name].parent for name in NODE_SPANS - {"receive"}} == {receive.span}
    wait, commit, confirm = (by_name[name] for name in ("wait in batch", "commit", "confirm"))
    assert push.start_ns <= receive.start_ns == wait.start_ns <= wait.end_ns == commit.start_ns
    assert commit.start_ns < commit.end_ns == confirm.start_ns <= confirm.end_ns == receive.end_ns
    assert not any(span.is_error for span in spans)


async def test_a_push_is_one_trace_from_the_client_to_the_commit(node: NodeProcess, collector: Collector) -> None:
    async with connect(node.address, traces=collector.url) as client:
        stream = await client.create("orders")
        assert await stream.push(b"first") == 0
    check_trace(collector.wait(5), "push orders")
    assert collector.paths == {"/v1/traces"}
    assert collector.named("push orders").attributes["messaging.message.id"] == "0"
    assert collector.named("receive").attributes["messaging.destination.name"] == "orders"
    assert collector.named("commit").attributes["stream_node.append_messages"] == 1


def test_every_kind_of_push_is_traced(node: NodeProcess, collector: Collector) -> None:
    """Goal: pushes with keys, numbered pushes, partitions and the blocking client. Method: one trace for each push,
    whose `receive` names the partition that the client has pushed to."""
    with connect_blocking(node.address, traces=collector.url) as client:
        plain = client.create("plain")
        plain.push(b"1")
        plain.push(b"2", key=b"k", headers={"h": b"v"})
        with plain.publisher(idempotent=True) as publisher:
            publisher.push_many([b"3", b"4", b"5"])
        parts = client.create_partitioned("parts", 3)
        with parts.publisher() as publisher:
            for number in range(6):
                publisher.push(b"%d" % number)
    spans = collector.wait(11 * 5)
    traces = {span.trace for span in spans}
    assert len(traces) == 11
    partitions = []
    for trace in traces:
        found = [span for span in spans if span.trace == trace]
        (push,) = (span for span in found if not span.parent)
        check_trace(found, push.name)
        (receive,) = (span for span in found if span.name == "receive")
        for name in ("messaging.destination.name", "messaging.destination.partition.id"):
            assert receive.attributes[name] == push.attributes[name]
        if push.name == "push parts":
            partitions.append(receive.attributes["messaging.destination.partition.id"])
    assert sorted(partitions) == ["0", "0", "1", "1", "2", "2"]


async def test_a_push_continues_the_trace_of_the_program(node: NodeProcess, collector: Collector) -> None:
    """Goal: the span of the program is the parent of its push. Method: a tracer that is the program's own, and whose
    span is never sent: its ids are compared with those that came over HTTP."""
    program = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    async with connect(node.address, traces=collector.url) as client:
        stream = await client.create("orders")
        with program.start_as_current_span("order") as span:
            await stream.push(b"first")
    context = span.get_span_context()
    collector.wait(5)
    assert {each.trace for each in collector.spans} == {f"{context.trace_id:032x}"}
    assert collector.named("push orders").parent == f"{context.span_id:016x}"


async def test_a_trace_that_is_not_chosen_makes_no_span(
    node: NodeProcess, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the client's sampler decides for the node, too. Method: a client with the sampler `always_off`, then one
    with `always_on`: only the second push is seen, although the node itself would choose every trace."""
    for sampler, data in (("always_off", b"first"), ("always_on", b"second")):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        async with connect(node.address, traces=collector.url) as client:
            await (await client.create("orders")).push(data)
    check_trace(collector.wait(5), "push orders")
    assert collector.named("push orders").attributes["messaging.message.id"] == "1"


async def test_a_push_that_fails_says_so_in_its_trace(node: NodeProcess, collector: Collector) -> None:
    """Goal: an error ends the client's span. Method: a message that is too large for any stream."""
    async with connect(node.address, traces=collector.url) as client:
        stream = await client.create("orders")
        with pytest.raises(RequestRefused):
            await stream.push(bytes(17 * 1024 * 1024))
    (span,) = collector.wait(1)
    assert (span.name, span.is_error) == ("push orders", True)


async def test_a_client_that_traces_may_use_a_node_that_does_not(tmp_path: Path, collector: Collector) -> None:
    """Goal: nothing but the node's spans is missing. Method: pushes of all kinds to a node without `traces`."""
    with NodeProcess(tmp_path / "silent") as node:
        async with connect(node.address, traces=collector.url) as client:
            stream = await client.create("orders")
            async with stream.publisher(idempotent=True) as publisher:
                assert await publisher.push_many([b"1", b"2"]) == [0, 1]
            assert await stream.push(b"3") == 2
        assert node.stop() == 0
    assert [span.name for span in collector.wait(3)] == ["push orders"] * 3


async def test_a_collector_that_is_down_disturbs_nothing(tmp_path: Path) -> None:
    """Goal: pushes are confirmed, the node stops, and lost spans are counted. Method: a port that nobody listens at;
    the node's last log line has the numbers."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
    with NodeProcess(tmp_path / "data", environment=tracing_to(url)) as node:
        async with connect(node.address, traces=url) as client:
            stream = await client.create("orders")
            for number in range(20):
                assert await stream.push(b"x") == number
        assert node.stop() == 0
        lines = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    (ended,) = (line for line in lines if line["event"] == "traces_ended")
    assert ended["exported"] == ended["dropped"] == 0
    assert ended["failed"] + ended["waiting"] == 20 * 4
    assert "opentelemetry" not in node.log_file.read_text()


async def test_a_collector_that_never_answers_disturbs_nothing(tmp_path: Path) -> None:
    """Goal: the exporting thread waits, the node does not. Method: a collector that holds its first request while
    pushes are confirmed, and then answers: every span has come."""
    hold = threading.Event()
    with (
        collecting(hold=hold) as collector,
        NodeProcess(tmp_path / "data", environment=tracing_to(collector.url)) as node,
    ):
        async with connect(node.address, traces=collector.url) as client:
            stream = await client.create("orders")
            await stream.push(b"0")
            while not collector.requests:
                await trio.sleep(0.01)
            for number in range(1, 50):
                assert await stream.push(b"x") == number
            assert collector.spans == []
            hold.set()
        assert node.stop() == 0
        assert len(collector.wait(50 * 5)) == 50 * 5


def test_spans_above_the_bound_are_dropped_and_counted() -> None:
    """Goal: the memory of waiting spans is bounded. Method: a collector that holds the first request, and more spans
    than may wait; every span is exported or counted as dropped."""
    hold = threading.Event()
    with collecting(hold=hold) as collector:
        tracing = open_tracing(collector.url, "test")
        more = WAITING_MAX + 2_000
        for _ in range(more):
            span = tracing.start("span", {})
            assert span is not None
            span.end({})
        dropped = tracing.statistics().dropped
        assert dropped == more - WAITING_MAX
        hold.set()
        tracing.close(timeout_s=30.0)
        statistics = tracing.statistics()
        assert (statistics.dropped, statistics.waiting, statistics.failed) == (dropped, 0, 0)
        assert len(collector.spans) == statistics.exported == more - dropped
