"""Goal: neither a few busy connections nor thousands that leave at once keep another one waiting.

Method: the turns alone, counting the order in which connections are served; then a node with floods and a good client,
and a count of the messages that the node handled for others while the good client waited.
"""

from __future__ import annotations

from functools import partial

import trio
import trio.testing

from ockam.actors.address import local
from ockam.actors.turns import (
    LEAVE_S,
    LIGHT_ABOUT_S,
    LIGHT_S,
    PAUSE_S,
    READ_BYTES_FIRST,
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    STEP_S,
    Share,
    TurnQueue,
    Turns,
)
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import serve
from tests.support.peer import Peer
from tests.support.served import wait_until


def test_hosts_take_turns_and_connections_of_a_host_after_each_other() -> None:
    queue = TurnQueue()
    turns = {name: trio.Event() for name in ("a1", "a2", "a3", "b1", "c1", "c2")}
    for name, turn in turns.items():
        queue.add(Share(name[0]), turn.set)
    served: list[str] = []
    while queue:
        queue.let_in(1e-9)
        served += [name for name, turn in turns.items() if turn.is_set() and name not in served]
    assert served == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_as_many_are_let_in_as_their_steps_are_likely_to_take() -> None:
    queue = TurnQueue()
    turns = []
    for cost_s in (0.001, 0.001, 0.5, 0.001):
        share = Share("a")
        share.cost_s = cost_s
        turns.append(trio.Event())
        queue.add(share, turns[-1].set)
    queue.let_in(0.01)
    assert [turn.is_set() for turn in turns] == [True, True, True, False]


async def test_nobody_waits_while_the_loop_is_not_busy(mock_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        for _ in range(20):
            await turns.wait(Share("a"))
        assert turns.waited == 0
        assert not nursery.child_tasks


async def test_work_inside_the_node_pauses_while_a_light_connection_is_served(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Claim: workers that never rest pause for a light peer only, and only for a moment after its last message. Method:
    a new peer, a known one that needs little, and one that needs much."""
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        light, busy = Share("a"), Share("b")
        turns.note(light, trio.current_time())
        assert turns.pause_s() == 0
        light.is_known = busy.is_known = True
        turns.note(light, trio.current_time())
        assert turns.pause_s() == PAUSE_S
        mock_clock.jump(LIGHT_ABOUT_S)
        assert turns.pause_s() == 0
        began_s = trio.current_time()
        mock_clock.jump(2 * LIGHT_S)
        turns.note(busy, began_s)
        assert turns.pause_s() == 0


async def test_light_connections_come_before_a_thousand_that_leave_and_before_busy_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """All of one host. The light one asks last; the others get their turns too."""
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)

        async def go(name: str, share: Share, leaves: bool = False) -> None:
            await turns.wait(share, leaves=leaves)
            served.append(name)

        busy, light = Share("a"), Share("a")
        busy.is_known = light.is_known = True
        turns.note(busy, trio.current_time() - 10)
        assert busy.used_s(trio.current_time()) > LIGHT_S
        for _ in range(1_000):
            nursery.start_soon(partial(go, "leaves", Share("a"), leaves=True))
        nursery.start_soon(go, "busy", busy)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(go, "light", light)
    assert sorted(set(served)) == ["busy", "leaves", "light"]
    assert len(served) == 1_002
    # Eight that leave have their turn at a time, and some turns pass until the light one has asked.
    assert served.index("light") < 20 * 0.004 / LEAVE_S


async def test_long_steps_make_the_next_ones_shorter_and_short_ones_longer(mock_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        share = Share("a")
        assert share.read_bytes == READ_BYTES_FIRST
        for _ in range(10):
            turns.note(share, trio.current_time())
        assert share.read_bytes == READ_BYTES_MAX
        for _ in range(10):
            turns.note(share, trio.current_time() - 10 * STEP_S)
        assert share.read_bytes == READ_BYTES_MIN


async def ping(peer: Peer) -> None:
    await peer.send((local("echo"),), b"ping")
    assert (await peer.receive()).payload == b"ping"


async def test_a_good_client_is_served_between_the_messages_of_floods() -> None:
    """Every message of twelve connections has another return route, so that none is read quickly."""
    floods, messages = 12, 4_000
    async with serve() as server, trio.open_nursery() as nursery:
        good = await server.peer(HEAD)
        await ping(good)

        def received() -> int:
            return sum(connection.received for connection in server.transport.statistics().connections)

        peers = [await server.peer(HEAD) for _ in range(floods)]
        back = [(local(f"{number}" + "r" * 40),) for number in range(messages)]
        data = b"".join(good.frame((local("nobody"),), b"", route) for route in back)
        for peer in peers:
            nursery.start_soon(peer.stream.send_all, data)
        most = pings = 0
        while received() < floods * messages:
            before = received()
            await ping(good)
            most = max(most, received() - before)
            pings += 1
        # Before turns were taken, these were 40,000 and more, and three pings.
        assert most < floods * messages // 4
        assert pings >= 8


async def test_a_good_client_is_served_while_hundreds_leave_at_once() -> None:
    """Without turns, all of them leave before the first answer, each time. A busy machine may delay a ping, too, so
    that one time of three must do."""
    assert min([await most_left_in_a_ping(400) for _ in range(3)]) < 400 // 2


async def most_left_in_a_ping(leaving: int) -> int:
    """Has so many peers leave at once. Returns how many of them left at most while the node answered one ping."""
    async with serve() as server:
        good = await server.peer(HEAD)
        await ping(good)
        peers = [await server.peer(HEAD) for _ in range(leaving)]
        await wait_until(lambda: server.transport.statistics().accepted == leaving + 1)
        await trio.testing.wait_all_tasks_blocked(0.01)

        def left() -> int:
            return sum(server.transport.statistics().closed.values())

        for peer in peers:
            peer.stream.socket.close()
        most = 0
        while left() < leaving:
            before = left()
            await ping(good)
            most = max(most, left() - before)
    return most
