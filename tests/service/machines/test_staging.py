"""Goal: pushes that come while an append commits are the next append, and nothing that comes with them is out of order.

Method: a whole server whose commits wait for the test, at the place where crash tests kill.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from ockam.actors.address import Route
from ockam.actors.message import Message
from ockam.transport.wire_head import HEAD
from stream_service.extensions import RICH_PUSH, RichPush, RichStatus, Sequence
from stream_service.protocol import PULL, PUSH, PullRequest, PushRequest, Status
from stream_service.workers import stream_machine
from tests.support.data_dir import stored_messages
from tests.support.served import Served, served, wait_until
from tests.support.stream_peer import StreamPeer

pytestmark = pytest.mark.usefixtures("each_database")


class Gate:
    """Holds commits at a place while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()

    def pass_through(self, site: str) -> None:
        if site == "after_rows_before_commit" and not self.open.is_set():
            self.waiting.set()
            assert self.open.wait(30), "the test has forgotten the gate"


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr("stream_storage.commit.failpoint", gate.pass_through)
    monkeypatch.setattr(stream_machine, "STAGED_BEHIND_MIN", 0)
    yield gate
    gate.open.set()


class Pushing:
    """One peer at one stream of a server, whose first push is being committed and waits at the gate."""

    def __init__(self, server: Served, peer: StreamPeer, route: Route, gate: Gate) -> None:
        self.server, self.peer, self.route, self.gate = server, peer, route, gate
        self._sent = 0

    async def begin(self) -> None:
        self.gate.open.clear()
        await self.send(PUSH.encode_request(PushRequest(0, b"first")))
        await wait_until(self.gate.waiting.is_set)

    async def send(self, *payloads: bytes) -> None:
        """Send in one piece, and wait until the node has them all."""
        routed = self.server.statistics().node.routed
        await self.peer.stream.send_all(b"".join(self.peer.frame(self.route, payload) for payload in payloads))
        await wait_until(lambda: self.server.statistics().node.routed >= routed + len(payloads))

    async def answers(self, count: int) -> list[Message]:
        with trio.fail_after(30):
            return [await self.peer.receive() for _ in range(count)]


def push(number: int, data: bytes | None = None) -> bytes:
    return PUSH.encode_request(PushRequest(number, b"%d" % number if data is None else data))


def confirmed(answers: list[Message]) -> list[tuple[int, int]]:
    """Request id and index of each confirm, all of which are OK."""
    confirms = [PUSH.decode_response(answer.payload) for answer in answers if PUSH.is_in(answer.payload)]
    assert all(confirm.status is Status.OK for confirm in confirms)
    return [(confirm.request_id, confirm.index) for confirm in confirms]


async def _pushing(server: Served, gate: Gate) -> Pushing:
    peer = await server.peer(HEAD)
    pushing = Pushing(server, peer, await peer.create("s"), gate)
    await pushing.begin()
    return pushing


@pytest.mark.parametrize("behind_min", [0, 32])
async def test_what_comes_while_an_append_commits_is_one_append(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, behind_min: int
) -> None:
    """Whether it is staged, or waits in the mailbox since the append is small."""
    monkeypatch.setattr(stream_machine, "STAGED_BEHIND_MIN", behind_min)
    async with served(tmp_path) as server:
        pushing = await _pushing(server, gate)
        commits = server.statistics().storage.commits
        for number in range(1, 50):
            await pushing.send(push(number))
        gate.open.set()
        assert confirmed(await pushing.answers(50)) == [(number, number) for number in range(50)]
        assert server.statistics().storage.commits == commits + 2
    assert stored_messages(tmp_path, "s") == [b"first", *(b"%d" % number for number in range(1, 50))]


async def test_a_pull_behind_staged_pushes_sees_them_and_one_before_them_need_not(tmp_path: Path, gate: Gate) -> None:
    async with served(tmp_path) as server:
        pushing = await _pushing(server, gate)
        await pushing.send(push(1), PULL.encode_request(PullRequest(7, 0, 100)), push(2), push(3))
        gate.open.set()
        answers = await pushing.answers(5)
        (page,) = [PULL.decode_response(answer.payload) for answer in answers if PULL.is_in(answer.payload)]
        assert [message.data for message in page.messages][:2] == [b"first", b"1"]
        assert confirmed(answers) == [(number, number) for number in range(4)]


async def test_numbered_pushes_behind_staged_ones_keep_their_place(tmp_path: Path, gate: Gate) -> None:
    async with served(tmp_path) as server:
        pushing = await _pushing(server, gate)
        numbered = [
            RICH_PUSH.encode_request(RichPush(10 + number, b"n%d" % number, None, [], Sequence(b"me", number)))
            for number in (0, 1, 1)
        ]
        await pushing.send(push(1), *numbered, push(2))
        gate.open.set()
        answers = await pushing.answers(6)
        rich = [RICH_PUSH.decode_response(answer.payload) for answer in answers if RICH_PUSH.is_in(answer.payload)]
        assert [(each.status, each.index) for each in rich] == [
            *((RichStatus.OK, 2), (RichStatus.OK, 3), (RichStatus.DUPLICATE, 3)),
        ]
        assert confirmed(answers) == [(0, 0), (1, 1), (2, 4)]
    assert stored_messages(tmp_path, "s") == [b"first", b"1", b"n0", b"n1", b"2"]


async def test_a_push_that_cannot_be_read_is_refused_alone(tmp_path: Path, gate: Gate) -> None:
    async with served(tmp_path) as server:
        pushing = await _pushing(server, gate)
        await pushing.send(push(1), PUSH.tag + b"\x01\xff", push(2))
        gate.open.set()
        answers = await pushing.answers(4)
        assert confirmed(answers) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("limit", ["STAGED_MESSAGES_MAX", "STAGED_BYTES_MAX"])
async def test_what_is_staged_is_bounded_and_the_rest_waits_in_the_mailbox(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(stream_machine, limit, 5)
    async with served(tmp_path) as server:
        pushing = await _pushing(server, gate)
        commits = server.statistics().storage.commits
        for number in range(1, 12):
            await pushing.send(push(number))
        gate.open.set()
        assert confirmed(await pushing.answers(12)) == [(number, number) for number in range(12)]
        assert server.statistics().storage.commits >= commits + 3


# A node does not see the disk of a PostgreSQL server.
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
async def test_what_is_staged_when_pushes_begin_to_be_refused_is_refused(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the order to refuse pushes holds for those that were staged before it. Method: the disk seems full."""
    async with served(tmp_path, error_delay_s=0.0) as server:
        pushing = await _pushing(server, gate)
        await pushing.send(push(1), push(2))
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
        await wait_until(lambda: server.server.refusing_pushes)
        gate.open.set()
        confirms = [PUSH.decode_response(answer.payload) for answer in await pushing.answers(3)]
        assert [(confirm.request_id, confirm.status) for confirm in confirms] == [
            *((0, Status.OK), (1, Status.ERROR), (2, Status.ERROR)),
        ]
    assert stored_messages(tmp_path, "s") == [b"first"]


# A node does not see the disk of a PostgreSQL server.
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
async def test_a_stored_number_is_known_although_the_pushes_staged_behind_it_are_refused(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: a refusal of the next append takes nothing from the numbers of the append that has just been stored.

    Method: the disk seems full between both, and then has room again. The numbered push is sent again.
    """
    async with served(tmp_path, error_delay_s=0.0) as server:
        peer = await server.peer(HEAD)
        pushing = Pushing(server, peer, await peer.create("s"), gate)
        numbered = RICH_PUSH.encode_request(RichPush(7, b"numbered", None, [], Sequence(b"me", 5)))
        gate.open.clear()
        await pushing.send(numbered)
        await wait_until(gate.waiting.is_set)
        await pushing.send(push(1))
        with monkeypatch.context() as full:
            full.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
            await wait_until(lambda: server.server.refusing_pushes)
            gate.open.set()
            answers = await pushing.answers(2)
        (refused,) = [PUSH.decode_response(each.payload) for each in answers if PUSH.is_in(each.payload)]
        assert refused.status is Status.ERROR
        await wait_until(lambda: not server.server.refusing_pushes)
        await pushing.send(numbered)
        (again,) = [RICH_PUSH.decode_response(each.payload) for each in await pushing.answers(1)]
        assert (again.status, again.index) == (RichStatus.DUPLICATE, 0)
    assert stored_messages(tmp_path, "s") == [b"numbered"]


async def test_many_streams_stage_for_themselves(tmp_path: Path, gate: Gate) -> None:
    async with served(tmp_path) as server:
        other = await (await server.peer(HEAD)).create("other")
        pushing = await _pushing(server, gate)
        await pushing.send(push(1))
        pushing.route = other
        await pushing.send(push(2), push(3))
        gate.open.set()
        assert sorted(confirmed(await pushing.answers(4))) == [(0, 0), (1, 1), (2, 0), (3, 1)]
