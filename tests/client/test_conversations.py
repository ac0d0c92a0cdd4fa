"""Goal: messages go back and forth with one service, and a conversation ends with its connection. Method: the core byte
by byte; a real service of a node in a child process, under every shell.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ockam.actors.address import Address, local, tcp
from ockam.actors.message import Message
from ockam.protocol import error_payload, failed_payload
from stream_client import ConnectionLost, NodeUnreachable, RequestRefused, RequestTimeout
from stream_client.core.client_core import ClientCore
from stream_client.core.conversation import CoreConversation
from stream_client.errors import ClientClosed, RouteLost
from stream_node.node.process import NodeProcess
from stream_service.extensions import LIST, ListRequest
from tests.client.machines.far_end import FarEnd, connected_core
from tests.client.shells import ShellName, Tools, run_in
from tests.client.sockets import unused_address

HELLO = b"\x05hello\x00"
VIA = (tcp("store:1"),)
LOST = failed_payload("no way to store:1: refused")


def said(far: FarEnd) -> Message:
    """The one message that the core has sent."""
    (message,) = far.sent()
    return message


def test_messages_follow_the_worker_that_answers() -> None:
    core, far = connected_core()
    conversation = core.converse("block_publish")
    conversation.send(HELLO)
    first = said(far)
    assert first.onward_route == (local("block_publish"),)
    far.answer(first, b"one", local("session"))
    far.answer(first, b"two", local("session"))
    assert (conversation.take(), conversation.take(), conversation.take()) == (b"one", b"two", None)
    conversation.send(HELLO)
    assert said(far).onward_route == (local("session"),)


def test_an_error_of_the_other_side_is_raised_in_its_turn() -> None:
    core, far = connected_core()
    conversation = core.converse("block_publish")
    conversation.send(HELLO)
    message = said(far)
    far.answer(message, b"before")
    far.answer(message, error_payload("no such thing"))
    assert conversation.take() == b"before"
    with pytest.raises(RequestRefused, match="no such thing"):
        conversation.take()
    assert conversation.is_open


@pytest.mark.parametrize("closes", [False, True])
def test_whoever_waits_for_room_learns_of_the_end_of_the_connection_first(closes: bool) -> None:
    """A publisher of blocks sends its next portion at once when there is room, and not into a lost connection."""
    core, _ = connected_core()
    conversation = core.converse("block_publish")
    conversation.send(HELLO)
    found: list[bool] = []
    core.connection.taken().when_done(lambda: found.append(conversation.is_open))
    if closes:
        core.close()
    else:
        core.disconnected()
    assert found == [False]
    core.check()


def test_a_conversation_opens_again_over_the_next_connection_at_a_new_address() -> None:
    core = ClientCore()
    conversation = core.converse("block_publish")
    states: list[bool] = []
    conversation.on_change = lambda: states.append(conversation.is_open)
    with pytest.raises(ConnectionLost):
        conversation.send(HELLO)
    far = FarEnd(core)
    conversation.send(HELLO)
    before = said(far)
    far.answer(before, b"not taken", local("session"))
    core.disconnected()
    with pytest.raises(ConnectionLost):
        conversation.send(HELLO)
    far = FarEnd(core)
    assert far.sent() == [], "only its owner knows what is to be said"
    conversation.send(HELLO)
    again = said(far)
    assert (again.onward_route, conversation.take()) == ((local("block_publish"),), None)
    assert again.return_route != before.return_route
    assert states == [True, True, False, True]
    far.answer(before, b"late")
    assert conversation.take() is None


def test_a_lost_route_breaks_a_conversation_until_it_is_back() -> None:
    core = ClientCore(via=VIA)
    core.service_route.on_lost = lambda first: None
    far = FarEnd(core)
    conversation = core.converse("block_publish")
    conversation.send(HELLO)
    question, message = far.sent()
    far.answer(message, LOST)
    assert isinstance(conversation.error, RouteLost)
    later = core.converse("block_publish")
    waits = core.connection.attempted()
    assert not later.is_open
    far.refuse(question)
    assert conversation.is_open, "the service has answered"
    assert later.is_open
    assert waits.done, "whoever waits for a way looks again"


def test_an_ended_conversation_hears_nothing_more() -> None:
    core, far = connected_core()
    conversation = core.converse("block_publish")
    conversation.send(HELLO)
    message = said(far)
    core.end_conversation(conversation)
    core.end_conversation(conversation)
    far.answer(message, b"late")
    assert conversation.take() is None
    core.disconnected()
    FarEnd(core)
    assert conversation.address is not None
    with pytest.raises(ClientClosed):
        conversation.send(HELLO)


def test_the_end_of_the_client_is_the_end_of_its_conversations() -> None:
    core, _ = connected_core()
    conversations: list[CoreConversation] = [core.converse("a"), core.converse("b")]
    told: list[Address | None] = []
    for each in conversations:
        each.on_change = lambda each=each: told.append(each.address)  # type: ignore[misc]
    core.close()
    assert len(told) == 2
    assert all(isinstance(each.error, ClientClosed) for each in conversations)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node")) as node:
        yield node


def test_there_and_back_under_every_shell(shell: ShellName, node: NodeProcess) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            conversation = client.converse("stream_service")
            await conversation.opened()
            for _ in range(2):
                assert (await conversation.ask(LIST, ListRequest(0, "", None, 1), 30.0)).streams == []
            assert await conversation.receive(0.01) is None
            with pytest.raises(RequestTimeout):
                await client.converse("nobody").ask(LIST, ListRequest(0, "", None, 1), 0.01)
            conversation.close()

    run_in(shell, scenario, node.address)


def test_a_conversation_ends_with_its_connection(shell: ShellName, tmp_path: Path) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            conversation = client.converse("stream_service")
            server.kill()
            with pytest.raises(ConnectionLost):
                await conversation.receive(30.0)
            with pytest.raises(ConnectionLost):
                await conversation.send(HELLO)
            with pytest.raises(NodeUnreachable):
                await client.converse("stream_service").opened()
            server.start()
            while True:
                another = client.converse("stream_service")
                try:
                    await another.opened()
                except NodeUnreachable:
                    continue
                break
            await another.ask(LIST, ListRequest(0, "", None, 1), 30.0)
            with pytest.raises(ConnectionLost):
                await conversation.send(HELLO)

    with NodeProcess(tmp_path / "data") as server:
        run_in(shell, scenario, server.address)


def test_a_client_that_does_not_wait_is_told_by_its_calls(shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(waits=False) as client:
            with pytest.raises(NodeUnreachable, match="cannot reach a node"):
                await client.converse("stream_service").opened()

    run_in(shell, scenario, unused_address())
