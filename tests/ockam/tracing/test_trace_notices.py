"""Goal: the message that says to which trace a push belongs changes nothing for the push, and reaches every node.

Method: a client core byte by byte, beside a core that does not trace; and real nodes, over every way on which a push
travels.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

from ockam.actors.address import Route, tcp
from ockam.actors.message import Message
from ockam.identity.channel.identity_file import create_identity
from ockam.tracing.opening import open_tracing
from ockam.tracing.spans import Tracing
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import PushNotStored, SecureChannel
from stream_client.blocking import connect
from stream_client.core.client_core import ClientCore
from stream_client.core.sequence_machine import SequenceMachine
from stream_node.node.process import NodeProcess
from stream_service.extensions import RICH_PUSH, TRACE
from stream_service.protocol import PUSH
from tests.client.machines.far_end import FarEnd, opened
from tests.ockam.tracing.collector import Collector, collecting

TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture
def tracing(collector: Collector) -> Iterator[Tracing]:
    opened = open_tracing(collector.url, "test")
    yield opened
    opened.close()


def push_everything(tracing: Tracing | None, wire: Wire) -> tuple[ClientCore, FarEnd, list[Message]]:
    """Plain pushes, one with a key, and numbered ones; and what the core has sent for them."""
    core = ClientCore(tracing=tracing)
    far = FarEnd(core, wire)
    (handle,) = opened(core, far)
    for number in range(3):
        handle.queue.push(b"plain %d" % number)
    handle.queue.push_keyed(b"keyed", b"key", [])
    queue = core.open_queue(handle, SequenceMachine(b"publisher", 0, None))
    for number in range(3):
        queue.push_keyed(b"numbered %d" % number, None, [])
    return core, far, far.sent()


def routed(message: Message) -> tuple[Route, Route, bytes]:
    return message.onward_route, message.return_route, message.payload


def is_push(message: Message) -> bool:
    return PUSH.is_in(message.payload) or RICH_PUSH.is_in(message.payload)


@pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
def test_a_push_has_the_same_bytes_with_and_without_a_trace(tracing: Tracing, wire: Wire) -> None:
    """Goal: the routes and the payload of a push stay, and each push has its own announcement directly before it."""
    _, _, plain = push_everything(None, wire)
    _, _, traced = push_everything(tracing, wire)
    assert [routed(message) for message in traced if is_push(message)] == [routed(message) for message in plain]
    notices, pushes = traced[::2], traced[1::2]
    assert len(notices) == len(pushes) == len(plain) > 4
    seen = set()
    for notice, push in zip(notices, pushes, strict=True):
        protocol: Any = PUSH if PUSH.is_in(push.payload) else RICH_PUSH
        said = TRACE.decode_request(notice.payload)
        assert notice.onward_route == push.onward_route
        assert notice.return_route[:-1] == push.return_route[:-1]
        assert said.publisher.encode() == push.return_route[-1].value
        assert said.request_id == protocol.decode_request(push.payload).request_id
        assert TRACEPARENT.fullmatch(said.traceparent), said
        seen.add(said.traceparent)
    assert len(seen) == len(pushes)


def test_an_error_for_a_trace_fails_no_push(tracing: Tracing) -> None:
    """Goal: an older node, which answers `error` to what it does not know, stores pushes all the same."""
    core, far, sent = push_everything(tracing, HEAD)
    refused = 0
    # A numbered push is sent alone until the node has confirmed the first one, so more comes after the answers.
    while sent:
        for message in sent:
            if TRACE.is_in(message.payload):
                far.refuse(message, "a stream serves no 'node/trace/1'")
                refused += 1
            elif PUSH.is_in(message.payload):
                far.confirm(message, 0)
            else:
                far.confirm_rich(message, 0)
        sent = far.sent()
    assert refused == 7
    assert core.statistics().unconfirmed == 0


def test_a_push_that_is_sent_again_stays_in_its_trace(tracing: Tracing) -> None:
    """Goal: after a reconnect the same trace is announced again. Method: a connection that ends before any confirm."""
    core, _, first = push_everything(tracing, HEAD)
    core.disconnected()
    far = FarEnd(core)
    (create,) = far.sent()
    far.answer_create(create)
    again = far.sent()
    notices = [message.payload for message in first if TRACE.is_in(message.payload)]
    assert [message.payload for message in again if TRACE.is_in(message.payload)] == notices
    assert sum(map(is_push, again)) == len(notices)


@pytest.mark.parametrize("way", ["legacy framing", "through another node", "secure channel"])
def test_a_trace_reaches_the_node_on_every_way(tmp_path: Path, collector: Collector, way: str) -> None:
    """Goal: the trace arrives with its push over both framings, through a node that does not trace, and encrypted."""
    variables = {"STREAM_NODE_TRACES": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    options: dict[str, Any] = {}
    with ExitStack() as stack:
        if way == "secure channel":
            variables["STREAM_NODE_SECURE_CHANNEL_TRUST_ANYONE"] = "true"
            now_s = int(time.time())
            peer = create_identity(tmp_path / "data" / "identity.json", now_s)
            options["channel"] = SecureChannel(identity=create_identity(tmp_path / "me.json", now_s), peer=str(peer))
        node = stack.enter_context(NodeProcess(tmp_path / "data", environment=variables))
        first = node.address
        if way == "legacy framing":
            options["framing"] = "legacy"
        elif way == "through another node":
            allowed = ("--allow-forward", node.address)
            between = stack.enter_context(NodeProcess(tmp_path / "between", arguments=allowed))
            first, options["via"] = between.address, (tcp(node.address),)
        with connect(first, traces=collector.url, **options) as client:
            stream = client.create("orders")
            assert [stream.push(b"x") for _ in range(3)] == [0, 1, 2]
        spans = collector.wait(15)
    roots = {span.trace: span.span for span in spans if not span.parent}
    receives = [span for span in spans if span.name == "receive"]
    assert len(roots) == len(receives) == 3
    assert all(span.parent == roots[span.trace] for span in receives)


def test_a_push_that_the_node_does_not_store_is_an_error_on_both_sides(tmp_path: Path, collector: Collector) -> None:
    """Method: a node that wants more free disk than there is; its span has the reason, and no commit."""
    variables = {"STREAM_NODE_TRACES": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50", "STREAM_NODE_ERROR_DELAY_S": "0"}
    wanted = {"STREAM_NODE_FREE_DISK_BYTES_MIN": str(2**60)}
    with NodeProcess(tmp_path / "data", environment=variables | wanted) as node:
        with connect(node.address, traces=collector.url) as client, pytest.raises(PushNotStored):
            client.create("orders").push(b"x")
        spans = collector.wait(2)
    assert {(span.service, span.name, span.is_error) for span in spans} == {
        ("stream-client", "push orders", True),
        ("stream-node", "receive", True),
    }
    assert len({span.trace for span in spans}) == 1
