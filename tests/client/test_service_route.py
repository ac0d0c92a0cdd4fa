"""Goal: a client that reads through another node goes on as soon as the way is back. Method: a store behind a door is
killed and started again, under clients that never ask again by the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ockam.actors.address import local, tcp
from ockam.protocol import error_payload, failed_payload
from stream_client import ClientError, NodeUnreachable, Reconnect, RouteLost, RouteRefused, blocking
from stream_client.core.client_core import ClientCore
from stream_client.shell import async_shell as async_client
from stream_client.shell import blocking_shell
from stream_node.node.process import NodeProcess
from stream_service.extensions import LIST, ListResponse
from tests.client.machines.far_end import FarEnd, is_create, pushes
from tests.client.shells import ShellName, Tools, run_in

VIA = (tcp("store:1"),)
LOST = failed_payload("no way to store:1: refused")


@pytest.fixture
def never_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (async_client, blocking_shell):
        monkeypatch.setattr(module, "CHECK_INTERVAL_S", 1e6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "store") as store:
        yield store


@pytest.fixture
def door(tmp_path: Path, store: NodeProcess) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "door", arguments=("--allow-forward", store.address)) as door:
        yield door


def test_a_lost_long_poll_is_asked_again_at_once(
    shell: ShellName, store: NodeProcess, door: NodeProcess, never_by_the_clock: None
) -> None:
    links: list[ClientError | None] = []

    async def scenario(tools: Tools) -> None:
        async with tools.connect(via=(tcp(store.address),), on_link=links.append) as client:
            stream = await client.create("s")
            assert await stream.push(b"one") == 0
            follower = stream.follow()
            assert (await anext(follower)).data == b"one"
            store.kill()
            store.start()
            with blocking.connect(store.address) as near:
                near.create("s").push(b"two")
            assert (await anext(follower)).data == b"two"

    run_in(shell, scenario, door.address)
    # Said once each, however often the way was asked for in between.
    assert [type(each) for each in links] == [RouteLost, type(None)]


def test_a_way_that_stays_lost_is_given_up(
    shell: ShellName, store: NodeProcess, door: NodeProcess, never_by_the_clock: None
) -> None:
    async def scenario(tools: Tools) -> None:
        reconnect = Reconnect(give_up_s=0.3)
        async with tools.connect(via=(tcp(store.address),), reconnect=reconnect, answer_timeout_s=None) as client:
            stream = await client.create("s")
            store.kill()
            with pytest.raises(RouteLost, match=f"no way to {store.address}") as caught:
                await stream.pull_page(0, wait_s=5.0)
            assert (caught.value.retriable, caught.value.fault) == (True, "network")

    run_in(shell, scenario, door.address)


def connected() -> tuple[ClientCore, FarEnd, list[bool]]:
    """A core behind a door, which has asked the way; and what it said of losing it."""
    core, lost = ClientCore(via=VIA), list[bool]()
    core.service_route.on_lost = lost.append
    return core, FarEnd(core), lost


def test_nothing_is_sent_twice_around_a_lost_way() -> None:
    """Pushes wait while the way is gone, and go out once when it is back."""
    core, far, lost = connected()
    (question,) = far.sent()
    far.answer(question, LIST.encode_response(ListResponse(0, [], False)))
    assert core.service_route.reached
    call = core.create("s")
    (create,) = far.sent()
    far.answer_create(create)
    (handle,) = core.streams.handles(call)
    poll = core.call(handle, b"\x12node/stream_pull/1\x00")
    handle.queue.push(b"a")
    asked, _ = far.sent()
    far.answer(asked, LOST)
    assert (lost, poll.done) == ([True], False)
    handle.queue.push(b"b")
    assert far.sent() == []
    core.service_route.ask()
    (question,) = far.sent()
    far.answer(question, LOST)
    assert lost == [True, False]
    core.service_route.ask()
    (question,) = far.sent()
    far.answer(question, LIST.encode_response(ListResponse(0, [], False)))
    # The stream is found again first, since a push waits for it.
    (create,) = far.sent()
    assert is_create(create)
    far.answer_create(create)
    sent = far.sent()
    assert [push.data for push in pushes(sent)] == [b"a", b"b"]
    assert sum(each.payload.startswith(b"\x12node/stream_pull/1") for each in sent) == 1


def test_a_way_that_is_refused_ends_the_client_or_what_it_waits_for() -> None:
    core, far, _ = connected()
    waiting = core.create("s")
    question, _ = far.sent()
    far.answer(question, error_payload("not passed on: no"))
    assert isinstance(waiting.error, RouteRefused)
    with pytest.raises(RouteRefused):
        core.create("s")
    core, far, _ = connected()
    (question,) = far.sent()
    far.answer(question, LIST.encode_response(ListResponse(0, [], False)))
    core.connected()
    far = FarEnd(core)
    waiting = core.create("s")
    question, _ = far.sent()
    far.answer(question, error_payload("not passed on: no"))
    assert isinstance(waiting.error, RouteRefused)
    assert not core.create("s").done


def test_without_reconnect_a_lost_way_is_an_error() -> None:
    core = ClientCore(via=VIA)
    far = FarEnd(core)
    far.sent()
    call = core.call((*VIA, local("w")), b"\x0anode/x/1\x00")
    (asked,) = far.sent()
    far.answer(asked, LOST)
    assert isinstance(call.error, NodeUnreachable)
