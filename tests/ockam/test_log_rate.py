"""Goal: no peer fills the log with lines about what it was refused, nor hides the lines about others.

Method: our own clock, and floods of refused requests over real sockets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from index_service.protocol import INDEX, GetIndex
from ockam.actors.address import Address, local, tcp
from ockam.log_rate import HOST_LINES_MAX, INTERVAL_S, LINES_MAX, LogRate
from tests.support.served import served
from tests.support.stream_peer import INDEX_SERVICE, SERVICE

FLOOD = 300


def test_lines_about_one_host_are_bounded_and_the_rest_is_counted() -> None:
    now_s, lines = 100.0, list[dict[str, Any]]()
    rate = LogRate(lambda: now_s)

    def write(event: str, **fields: Any) -> None:
        lines.append({"event": event, **fields})

    for port in range(1_000):
        rate.log(write, "refused", peer=f"10.0.0.1:{port}", reason="no")
    assert len(lines) == HOST_LINES_MAX
    assert lines[0] == {"event": "refused", "peer": "10.0.0.1:0", "reason": "no"}
    # Another host is not hidden, and its line tells what was left out before it.
    rate.log(write, "refused", peer="[::1]:5")
    assert lines[-1] == {"event": "refused", "peer": "[::1]:5", "left_out": 1_000 - HOST_LINES_MAX}
    for number in range(1_000):
        rate.log(write, "refused", peer=f"10.1.{number}:1")
    assert len(lines) == LINES_MAX
    now_s += INTERVAL_S
    rate.log(write, "refused", peer="10.0.0.1:1")
    assert (len(lines), lines[-1]["left_out"]) == (LINES_MAX + 1, 1_000 + HOST_LINES_MAX + 1 - LINES_MAX)


def test_the_addresses_of_one_network_are_one_host() -> None:
    """One machine can have every address of its IPv6 network of 64 bits."""
    lines = list[str]()
    rate = LogRate(lambda: 100.0)
    for number in range(100):
        rate.log(lambda event, peer: lines.append(peer), "refused", peer=f"[2001:db8::{number:x}]:1")
    assert len(lines) == HOST_LINES_MAX


async def test_a_flood_of_what_a_node_refuses_writes_few_lines(tmp_path: Path) -> None:
    """Forwarding to a destination that is not allowed, and bad requests to the stream service and the index service."""
    with capture_logs() as logs:
        async with served(tmp_path) as server:
            peer = await server.peer()
            forwarded = peer.frame((tcp("10.0.0.1:4000"), local("x")), b"x")
            odd = peer.frame((Address(1, b"no address"), local("x")), b"x")
            await peer.stream.send_all((forwarded + odd + peer.frame(INDEX_SERVICE, b"bad")) * FLOOD)
            for _ in range(FLOOD):
                await peer.send(SERVICE, b"bad")
            for _ in range(FLOOD):
                await peer.receive()
            await peer.ask(INDEX_SERVICE, INDEX.encode_request(GetIndex("app", "s")))
            statistics = server.statistics()
    assert statistics.node.dropped == {"forward_refused": 2 * FLOOD}
    assert statistics.services.refused == FLOOD
    assert statistics.services.index.ignored == FLOOD
    for event in ("forward_refused", "request_refused", "index_request_ignored"):
        assert len([line for line in logs if line["event"] == event]) == HOST_LINES_MAX, event


async def test_a_flood_of_bad_frames_writes_few_lines(tmp_path: Path) -> None:
    """Each bad frame ends its connection, and a peer can connect again at once. All ends are counted."""
    with capture_logs() as logs:
        async with served(tmp_path) as server:
            for _ in range(3 * HOST_LINES_MAX):
                peer = await server.peer()
                await peer.stream.send_all(b"\xff" * 8)
                await peer.wait_closed()
            await server.wait_closed_because("oversized", 3 * HOST_LINES_MAX)
    closed = [line for line in logs if line["event"] == "connection_closed"]
    assert len(closed) == HOST_LINES_MAX
    assert {(line["kind"], line["log_level"]) for line in closed} == {("oversized", "warning")}
