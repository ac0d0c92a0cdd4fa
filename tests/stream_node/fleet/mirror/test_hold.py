"""Goal: a primary that asks its mirrors after a start stores nothing until it knows, whatever it is asked for: pushes,
appends, deletions, a change of its role or a question for it.

Method: the node of its only mirror is down, so the asking lasts until this node is started.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.actors.address import Route
from stream_node.fleet.mirror import followers
from stream_node.node.process import NodeProcess
from stream_service.appending import APPEND, AppendedMessage, AppendRequest
from stream_service.extensions import (
    DELETE,
    RETENTION,
    TRUNCATE,
    BeforeIndex,
    DeleteRequest,
    RetentionRequest,
    RichStatus,
    TruncateRequest,
)
from stream_service.mirroring import MIRROR, ROLE, AskingMirror, BePrimary, MirrorPull, Role, RoleRequest
from stream_service.names import stream_address
from stream_service.protocol import Status
from tests.stream_node.fleet.mirror.mirrors import contents, role_of
from tests.support.rich import ask, push, refusal
from tests.support.served import PATIENCE_S, served
from tests.support.stream_peer import StreamPeer, stream_peer

S: Route = (stream_address("s", 0),)


async def check_held(peer: StreamPeer) -> None:
    """Nothing that would store or delete a message is done."""
    assert (await peer.push(S, b"plain")).status is Status.ERROR
    assert (await push(peer, S, b"rich", sequence=(b"p", 1))).status is RichStatus.ERROR
    append = AppendRequest(1, 5, None, [AppendedMessage(None, [], b"appended")])
    assert "asks there whether" in await refusal(peer, S, APPEND, append)
    for reason in (
        await refusal(peer, S, TRUNCATE, TruncateRequest(1, BeforeIndex(3))),
        await refusal(peer, S, RETENTION, RetentionRequest(1, None)),
        await refusal(peer, S, DELETE, DeleteRequest(1)),
    ):
        assert "asks there whether" in reason
        assert "mirror remove" not in reason


async def test_a_primary_that_asks_its_mirrors_stores_nothing_until_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeProcess(tmp_path / "b") as b:
        async with served(tmp_path / "a") as a, stream_peer(a.address) as peer:
            await peer.push_all(await peer.create("s"), [b"x"] * 5)
            await peer.ask(S, MIRROR.encode_request(MirrorPull(1, 0, 1, 0, 0, AskingMirror(b.address, "s"))))
        async with stream_peer(b.address) as peer:
            await peer.create("s")
        b.kill()
        monkeypatch.setattr(followers, "PATIENCE_S", PATIENCE_S)
        async with served(tmp_path / "a", error_delay_s=0.0) as a, stream_peer(a.address) as peer:
            await check_held(peer)
            # A question for the role, or a change that changes nothing, does not end it.
            assert await role_of(a.address) is Role.PRIMARY
            await check_held(peer)
            await ask(peer, S, ROLE, RoleRequest(1, BePrimary(False), True))
            await check_held(peer)
            # Readers are served.
            first_index, next_index, messages = await contents(a.address, "s")
            assert (first_index, next_index, [each.data for each in messages]) == (0, 5, [b"x"] * 5)
            # The mirror is a stream of its own now.
            b.start()
            with trio.fail_after(PATIENCE_S):
                while (confirm := await peer.push(S, b"after")).status is not Status.OK:
                    await trio.sleep(0.01)
            assert confirm.index == 5
            append = AppendRequest(1, 6, None, [AppendedMessage(None, [], b"appended")])
            assert (await ask(peer, S, APPEND, append)).next_index == 7
