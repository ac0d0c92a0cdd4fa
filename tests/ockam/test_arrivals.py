"""Goal: connections whose reads are small are read together, and it makes no difference to what they send.

Method: sockets of real peers, which the node has begun to read together, and then whatever ends that: large frames, cut
frames, bytes that are no frame, a closed connection, a full mailbox, a limit, and a mistake in the code that reads.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.turns import READ_BYTES_MAX, Share, Turns
from ockam.actors.worker import Worker
from ockam.transport.arrivals import ARRIVALS_MAX, SMALL_READS_MIN, ReadyConnections
from ockam.transport.listener import accept_all
from ockam.transport.wire_head import HEAD
from tests.ockam.tcp_server import Server, serve
from tests.support.peer import Peer

ECHO = (local("echo"),)


class Runs(Worker):
    """Keeps the lists of messages that it gets, and echoes them."""

    def __init__(self) -> None:
        self.runs: list[list[bytes]] = []

    def receive(self, run: Sequence[Message]) -> None:
        self.runs.append([message.payload for message in run])
        super().receive(run)

    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


async def arrived(server: Server) -> Peer:
    """A peer that the node reads together with others."""
    peer = await server.peer(HEAD)
    for _ in range(SMALL_READS_MIN + 1):
        await peer.send(ECHO, b"small")
        await peer.receive()
    await trio.testing.wait_all_tasks_blocked()
    return peer


async def test_what_many_peers_send_at_a_time_is_one_list_for_the_worker() -> None:
    async with serve() as server:
        worker = Runs()
        server.node.register([local("runs")], lambda: worker)
        peers = [await arrived(server) for _ in range(20)]
        # The node runs in this thread: between these calls it reads nothing.
        for number, peer in enumerate(peers):
            os.write(peer.stream.socket.fileno(), peer.frame((local("runs"),), bytes([number])))
        assert [(await peer.receive()).payload for peer in peers] == [bytes([number]) for number in range(20)]
        assert [sorted(run) for run in worker.runs] == [[bytes([number]) for number in range(20)]]


@pytest.mark.parametrize("size_bytes", [1, 4_000, 4_096, 5_000, 70_000, 1_000_000])
async def test_frames_of_any_size_come_in_order_between_small_ones(size_bytes: int) -> None:
    async with serve() as server:
        peer = await arrived(server)
        sent = [b"before", os.urandom(size_bytes), b"after", os.urandom(size_bytes), b"end"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.stream.send_all, b"".join(peer.frame(ECHO, payload) for payload in sent))
            assert [(await peer.receive()).payload for _ in sent] == sent
        for _ in range(SMALL_READS_MIN + 1):
            await peer.send(ECHO, b"again")
            assert (await peer.receive()).payload == b"again"


async def test_a_frame_that_comes_byte_by_byte_is_whole() -> None:
    async with serve() as server:
        peer = await arrived(server)
        for byte in peer.frame(ECHO, b"bytes"):
            await peer.stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await peer.receive()).payload == b"bytes"


async def test_a_bad_frame_ends_its_connection_after_the_messages_before_it_and_no_other_connection() -> None:
    async with serve() as server:
        bad, good = await arrived(server), await arrived(server)
        await bad.stream.send_all(bad.frame(ECHO, b"last") + b"\0\0\0\x09no frame!")
        assert (await bad.receive()).payload == b"last"
        await bad.wait_closed()
        await good.send(ECHO, b"goes on")
        assert (await good.receive()).payload == b"goes on"


async def test_the_end_of_a_connection_is_seen() -> None:
    async with serve() as server:
        peer = await arrived(server)
        await peer.send(ECHO, b"last")
        await peer.stream.send_eof()
        assert (await peer.receive()).payload == b"last"
        await server.wait_closed_because("closed_by_peer")


async def test_no_peer_is_read_while_the_mailbox_that_it_filled_is_full() -> None:
    async with serve() as server:
        server.node.register([local("runs")], Runs)
        peer = await arrived(server)
        mailbox = server.node.find_mailbox(local("runs"))
        assert mailbox is not None
        mailbox.hold()
        for payload in (b"1", b"2"):
            await peer.send((local("runs"),), payload)
            await trio.testing.wait_all_tasks_blocked()
        assert mailbox.statistics().received == 1
        mailbox.admit()
        assert [(await peer.receive()).payload for _ in range(2)] == [b"1", b"2"]


async def test_a_mistake_ends_the_wait_of_one_connection_and_leaves_the_others() -> None:
    found: list[str] = []
    async with trio.open_nursery() as nursery:
        arrivals = ReadyConnections(Node(nursery), nursery, Turns(nursery, read_bytes_max=READ_BYTES_MAX))
        pairs = {name: trio.socket.socketpair() for name in ("bad", "good")}

        def take(name: str) -> bool:
            os.read(pairs[name][0].fileno(), 1)
            if name == "bad":
                raise ZeroDivisionError
            found.append(name)
            return False

        async def wait(name: str) -> None:
            try:
                await arrivals.wait(pairs[name][0].fileno(), Share(name), lambda: take(name))
            except ZeroDivisionError:
                found.append("mistake")

        for name in pairs:
            nursery.start_soon(wait, name)
        for name in pairs:
            await trio.testing.wait_all_tasks_blocked()
            await pairs[name][1].send(b".")
    assert found == ["mistake", "good"]
    for each in (socket for pair in pairs.values() for socket in pair):
        each.close()


async def test_a_turn_reads_a_bounded_number_of_connections_and_hosts_alternate() -> None:
    """Three turns' worth of connections of one host are ready together with one of another host."""
    order: list[str] = []
    ends: set[int] = set()
    hosts = ["a"] * (3 * ARRIVALS_MAX) + ["b"]
    pairs = [trio.socket.socketpair() for _ in hosts]
    for _, theirs in pairs:
        await theirs.send(b".")
    async with AsyncExitStack() as stack:
        for each in (socket for pair in pairs for socket in pair):
            stack.callback(each.close)
        nursery = await stack.enter_async_context(trio.open_nursery())
        node = Node(nursery)
        arrivals = ReadyConnections(node, nursery, Turns(nursery, read_bytes_max=READ_BYTES_MAX))

        def take(host: str) -> bool:
            order.append(host)
            node.at_batch_end(lambda: ends.add(len(order)))
            return False

        for host, (ours, _) in zip(hosts, pairs, strict=True):
            nursery.start_soon(arrivals.wait, ours.fileno(), Share(host), partial(take, host))
    assert sorted(order) == hosts
    assert order.index("b") <= 1
    sizes = [end - begin for begin, end in pairwise([0, *sorted(ends)])]
    assert max(sizes) <= ARRIVALS_MAX
    assert sum(sizes) == len(hosts)


async def test_connections_that_come_together_are_accepted_together() -> None:
    """Goal: a turn of a busy event loop is long, so a thousand clients must not wait a turn each. Method: 96
    connections wait in the kernel; the turns are counted in which they are accepted. Each can be used both ways."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    callers = [await trio.open_tcp_stream(*listener.socket.getsockname()) for _ in range(96)]
    taken: list[trio.SocketStream] = []
    turns = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_all, listener, taken.append, lambda: None)
        with trio.fail_after(10):
            while len(taken) < len(callers):
                await trio.lowlevel.checkpoint()
                turns += 1
        nursery.cancel_scope.cancel()
    assert turns < len(callers) / 4
    by_name = {stream.socket.getpeername(): stream for stream in taken}
    for caller in callers:
        other = by_name[caller.socket.getsockname()]
        await caller.send_all(b"to")
        assert await other.receive_some() == b"to"
        await other.send_all(b"from")
        assert await caller.receive_some() == b"from"
        await other.aclose()
        await caller.aclose()


async def test_a_listener_whose_process_has_no_more_descriptors_goes_on() -> None:
    """Claim: no lack of descriptors ends a listener, also in the middle of a turn. Method: one descriptor is free while
    two connections wait. More become free when the listener asks for room."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    callers = [await trio.open_tcp_stream(*listener.socket.getsockname()) for _ in range(2)]
    taken: list[trio.SocketStream] = []
    filling: list[int] = []

    def make_room() -> None:
        while filling:
            os.close(filling.pop())

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Above all that this process has open: the numbers of the callers may be low ones that were free.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 8, hard))
    try:
        with suppress(OSError):
            while True:
                filling.append(os.dup(listener.socket.fileno()))
        os.close(filling.pop())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_all, listener, taken.append, make_room)
            with trio.fail_after(10):
                while len(taken) < len(callers):
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    finally:
        make_room()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for stream in (*taken, *callers):
        await stream.aclose()
