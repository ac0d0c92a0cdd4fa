"""Goal: a refused token keeps nothing of the peer in the node's memory while its refusal waits to be answered.

Method: a node whose refusals wait for long; plain sockets that send a wrong token with more around it. What Python has
allocated is asked of `tracemalloc`, not of the node.
"""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest
import trio
import trio.testing

from ockam.transport.connection_usage import PartialFrames
from tests.support.served import wait_until
from tests.tokens.plain_peer import PlainPeer, authentication, cbor_bytes, cbor_head, cbor_route, create
from tests.tokens.token_node import UNKNOWN, TokenNode, first_token, token_node

PEERS = 16
BEHIND = 12_000
LARGE = 1 << 20


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_node.node.identity.token_services.REFUSAL_DELAY_S_MAX", 1_000.0)


def refused_lines(node: TokenNode) -> int:
    return sum(line["event"] == "token_refused" for line in node.audit())


def framed(onward: list[bytes], payload: bytes, tracing: bytes = b"\xf6") -> bytes:
    """A frame of the head framing. tracing: the encoded tracing context, mostly none."""
    route = cbor_route([(0, each) for each in onward])
    body = b"\x84" + route + cbor_route([(0, b"me")]) + cbor_bytes(payload) + tracing
    return len(body).to_bytes(4, "big") + body


async def send_from_peers(node: TokenNode, data: bytes, count: int = PEERS) -> list[PlainPeer]:
    def connect() -> list[PlainPeer]:
        peers = [PlainPeer(node.address, "head") for _ in range(count)]
        for peer in peers:
            peer.send(data)
        return peers

    return await trio.to_thread.run_sync(connect)


async def held_bytes(folder: Path, behind: bytes) -> int:
    """Returns how many bytes a node has allocated more while the refusals of all peers wait."""
    first_token(folder)
    async with token_node(folder, error_delay_s=1_000.0) as node:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        peers = await send_from_peers(node, framed([b"node_authenticate"], authentication(UNKNOWN)) + behind)
        await trio.testing.wait_all_tasks_blocked(0.1)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        for peer in peers:
            peer.close()
    return held


async def test_nothing_behind_a_refused_token_is_kept(tmp_path: Path, slow: None) -> None:
    """The messages, and the frame that has just begun, that came in one piece with the token."""
    tracemalloc.start()
    try:
        alone = await held_bytes(tmp_path / "alone", b"")
        messages = framed([b"stream_service"], create(b"o" * (BEHIND // 2)))
        with_more = await held_bytes(tmp_path / "more", messages + LARGE.to_bytes(4, "big") + bytes(BEHIND // 2))
    finally:
        tracemalloc.stop()
    assert with_more - alone < PEERS * BEHIND / 4


async def test_a_refused_token_gives_the_room_of_its_frame_back(tmp_path: Path, slow: None) -> None:
    """The frame of the token has a tracing context of 1 MiB, so it comes in parts. Unfinished frames of all peers share
    one limit, and the refusals that wait must not use it up."""
    first_token(tmp_path)
    frame = framed([b"node_authenticate"], authentication(UNKNOWN), cbor_head(3, LARGE) + b"t" * LARGE)
    async with token_node(tmp_path, error_delay_s=1_000.0) as node:
        parts = [each for each in gc.get_objects() if isinstance(each, PartialFrames)]
        peers = await send_from_peers(node, frame[:-1], 4)
        await wait_until(lambda: sum(each.size_bytes for each in parts) == 4 * (len(frame) - 1))
        for peer in peers:
            peer.send(frame[-1:])
        # Equal refusals of one second are one line.
        await wait_until(lambda: refused_lines(node) >= 1 and not sum(each.size_bytes for each in parts))
        assert node.running.statistics().tcp.closed.get("token_refused") is None
        for peer in peers:
            peer.close()


async def test_a_large_authentication_is_closed_at_once(tmp_path: Path, slow: None) -> None:
    """No answer and no waiting: nobody sends it by mistake. It is counted and in the audit log."""
    first_token(tmp_path)
    async with token_node(tmp_path, error_delay_s=1_000.0) as node:

        def talk() -> None:
            for size in (600, LARGE):
                peer = PlainPeer(node.address, "head")
                peer.send(peer.frame([b"node_authenticate"], authentication("t" * size)))
                assert peer.is_closed()
                peer.close()

        with trio.fail_after(30):
            await trio.to_thread.run_sync(talk)
        await wait_until(lambda: node.running.statistics().tcp.closed.get("token_too_large") == 2)
        assert refused_lines(node) == 1
