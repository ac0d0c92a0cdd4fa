"""Goal: a limit of an identity holds for all processes of a node together, whichever process its connections and its
streams reach. Method: the attack against the real command with `--workers`; and the shared file beside a plain counter.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from cProfile import Profile
from pathlib import Path
from random import Random

import pytest
import trio

from ockam.actors.address import Route
from ockam.protocol import ERROR
from ockam.quotas import shared_use
from ockam.quotas.shared_use import SharedUse, shared_bytes
from ockam.quotas.usage import is_limited
from stream_node.node.process import NodeProcess
from stream_service.extensions import RICH_PULL, FromEnd, RichPull
from stream_service.protocol import CREATE, CreateStream
from tests.support.stream_peer import SERVICE, StreamPeer, stream_peer

WORKERS = 2
STREAMS_MAX, PULLS_MAX = 10, 5
CONNECTIONS = 12
"""So many connections reach all workers, but for one time in forty."""
LONG_POLL = RICH_PULL.encode_request(RichPull(7, FromEnd(0), 10, 60_000))
ENVIRONMENT = {
    "STREAM_NODE_IDENTITY_STREAMS_PER_HOUR": str(STREAMS_MAX),
    "STREAM_NODE_IDENTITY_PULLS_PARKED_MAX": str(PULLS_MAX),
    "STREAM_NODE_IDENTITY_LIMITS_LOOPBACK": "true",
}


async def test_the_limits_hold_with_workers(tmp_path: Path) -> None:
    """The attack: one identity, connections to all workers, and streams of all workers."""
    with NodeProcess(tmp_path / "data", arguments=("--workers", str(WORKERS)), environment=ENVIRONMENT) as node:
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(stream_peer(node.address)) for _ in range(CONNECTIONS)]
            routes: list[tuple[StreamPeer, Route]] = []
            refused = 0
            for number in range(60):
                peer = peers[number % CONNECTIONS]
                answer = await peer.ask(SERVICE, CREATE.encode_request(CreateStream(f"s{number}")))
                if ERROR.is_in(answer.payload):
                    assert is_limited(ERROR.decode_response(answer.payload).reason)
                    refused += 1
                else:
                    routes.append((peer, answer.return_route))
            assert (len(routes), refused) == (STREAMS_MAX, 60 - STREAMS_MAX), "was 84 instead of 10"
            for _ in range(3):
                for peer, route in routes:
                    await peer.send(route, LONG_POLL)
            over: Counter[bool] = Counter()
            async with trio.open_nursery() as nursery:

                async def read(peer: StreamPeer) -> None:
                    while True:
                        over[ERROR.is_in((await peer.receive(30)).payload)] += 1
                        if over[True] == 3 * STREAMS_MAX - PULLS_MAX:
                            nursery.cancel_scope.cancel()

                for peer in peers[:STREAMS_MAX]:
                    nursery.start_soon(read, peer)
            assert over == {True: 3 * STREAMS_MAX - PULLS_MAX}, "was 19 that waited instead of 5"


@contextmanager
def shared(count: int) -> Iterator[list[SharedUse]]:
    with tempfile.TemporaryFile() as file:
        file.truncate(shared_bytes(count))
        yield [SharedUse(file.fileno(), count, number) for number in range(count)]


def test_the_shared_file_counts_as_one_counter_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few entries, so that identities follow each other in the places of others."""
    monkeypatch.setattr(shared_use, "ENTRIES", 4)
    random = Random(1)
    with shared(3) as processes:
        opened: list[tuple[SharedUse, str]] = []
        for _ in range(3_000):
            key = f"token:{random.randrange(20)}"
            known = {each for _, each in opened}
            if opened and random.random() < 0.5:
                process, key = opened.pop(random.randrange(len(opened)))
                process.give_back(key, "pulls_parked_max")
            elif key in known or len(known) < 4:
                process = random.choice(processes)
                held = sum(each == key for _, each in opened)
                assert process.take(key, "pulls_parked_max", 3) is (held < 3)
                assert process.take(key, "channels_max", 0) is False
                if held < 3:
                    opened.append((process, key))


def test_a_new_identity_is_found_fast_after_many_others_have_come_and_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the lock of all processes is held for a short time, also when every entry of the file was used some time,
    and the processes count together then as before. Method: the calls that Python makes are counted, since a time would
    depend on the machine. Each entry that is read takes several, so a search of all entries takes more than entries."""
    monkeypatch.setattr(shared_use, "ENTRIES", 512)
    with shared(2) as (first, second):
        for number in range(5_000):
            assert first.take(f"token:{number}", "connections_max", 1)
            first.give_back(f"token:{number}", "connections_max")
        calls = Profile()
        assert calls.runcall(first.take, "token:new", "connections_max", 2)
        assert sum(each.callcount for each in calls.getstats()) < shared_use.ENTRIES
        assert [second.take("token:new", "connections_max", 2) for _ in range(2)] == [True, False]
        first.give_back("token:new", "connections_max")
        assert [process.take("token:new", "connections_max", 2) for process in (second, first)] == [True, False]


def test_what_a_dead_process_had_open_is_given_back_and_what_it_created_is_not() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(shared_bytes(2))
        first, second = (SharedUse(file.fileno(), 2, number) for number in range(2))
        assert [first.take("a", "connections_max", 3) for _ in range(2)] == [True, True]
        assert [second.take("a", "connections_max", 3) for _ in range(2)] == [True, False]
        assert first.create("a", 7, 10)
        again = SharedUse(file.fileno(), 2, 0)
        assert [again.take("a", "connections_max", 3) for _ in range(3)] == [True, True, False]
        assert [second.create("a", count, 10) for count in (4, 3, 1)] == [False, True, False]
        assert second.create("b", 10, 10), "another identity has its own"


def test_permits_of_creates_that_failed_come_back_once() -> None:
    with shared(2) as (first, second):
        assert first.create("a", 7, 10)
        first.give_back_created("a", 5, 10)
        assert [second.create("a", count, 10) for count in (9, 8, 1)] == [False, True, False]
        second.give_back_created("a", 30, 10)
        assert [first.create("a", count, 10) for count in (11, 10, 1)] == [False, True, False], "never more than all"
