"""Goal: a node that forwards lends no connection to a token: an authentication reaches the first node, or none.

Method: two whole nodes, the far one with tokens, and a plain socket at the near one that tries every route to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import tcp
from stream_client import AccessDenied, connect
from tests.support.served import served, wait_until
from tests.tokens.plain_peer import PlainPeer, authentication, create, protocol_of
from tests.tokens.token_node import FRAMINGS, first_token, token_node


async def in_thread(function: Callable[[], None]) -> None:
    with trio.fail_after(60):
        await trio.to_thread.run_sync(function)


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_authentication_is_not_passed_on(tmp_path: Path, framing: str) -> None:
    """The valid token of the far node is sent through the near one: as the first message there, and between others. The
    far node never sees it, and what is forwarded stays anonymous."""
    token = first_token(tmp_path / "far")
    async with (
        token_node(tmp_path / "far") as far,
        served(tmp_path / "near", allow_forward=(far.address,)) as near,
    ):
        there = b"tcp:" + far.address.encode()

        def talk() -> None:
            peer = PlainPeer(near.address, framing)
            smuggled = peer.frame([there, b"node_authenticate"], authentication(token))
            request = peer.frame([there, b"stream_service"], create(b"orders"))
            peer.send(smuggled)
            assert b"an authentication is for the node at the other end" in peer.receive().payload
            peer.send(request, smuggled, request)
            answers = [peer.receive() for _ in range(3)]
            assert [protocol_of(each) for each in answers] == [b"error"] * 3
            texts = [each.payload for each in answers]
            assert sum(b"for anonymous" in each for each in texts) == 2
            assert sum(b"not passed on" in each for each in texts) == 1
            peer.close()

        await in_thread(talk)
        assert near.statistics().node.dropped == {"forward_authentication": 2}
        assert "token_refused" not in far.running.statistics().tcp.closed
        assert far.running.statistics().services.streams == 0


async def test_a_token_is_for_the_first_node_on_the_way(tmp_path: Path) -> None:
    """A client goes through a node with rules to another one: its token gives the right to forward, and beyond that
    node the client is anonymous."""
    token = first_token(tmp_path / "near")
    async with served(tmp_path / "far") as far:
        settings: dict[str, Any] = {"allow_forward": (far.address,)}
        async with token_node(tmp_path / "near", **settings) as near:
            async with connect(near.address, via=(tcp(far.address),), token=token) as client:
                assert await (await client.create("orders")).push(b"x") == 0
            async with connect(near.address) as client:
                with pytest.raises(AccessDenied):
                    await client.create("orders")
        await wait_until(lambda: far.statistics().services.streams == 1)
