"""Goal: whatever comes when, the parts of a page follow each other without a gap, and exactly one of them is the last.

Method: a whole worker without a node, as in `test_stream_any_order.py`. A seeded random decides when messages come,
when reads and timers end, and when another worker takes over. The parts of each request are compared with the request.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.actors.worker import Context
from stream_service.extensions import PACKED_PULL, FromIndex, PackedPull
from stream_service.protocol import PUSH, PushRequest
from stream_service.stored import StoredStream
from stream_service.workers.stream import StreamWorker
from stream_service.workers.tail_machine import Tails
from tests.service.machines.test_stream_any_order import STREAM, Around
from tests.support.rich import messages_of

WAIT_S = 5.0


class Timed(Around):
    """What surrounds the worker, with timers."""

    def __init__(self, tails_bytes: int) -> None:
        super().__init__()
        self.tails = Tails(tails_bytes, tails_bytes)
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        self.timers.append((trio.current_time() + delay_s, function))

    def end_timers(self) -> None:
        now_s = trio.current_time()
        due = [function for at_s, function in self.timers if at_s <= now_s]
        self.timers = [each for each in self.timers if each[0] > now_s]
        for function in due:
            function()


class FollowedWorld:
    """asked: by return address, the start and the limit of each follow."""

    def __init__(self, random: Random, clock: MockClock) -> None:
        self._random, self._clock = random, clock
        self._around = around = Timed(random.choice((0, 1 << 20)))
        around.session.begin()
        around.session.log.ensure_stream("s", 0, 0)
        around.session.commit()
        self._start()
        self.asked: dict[Address, tuple[int, int]] = {}

    def _start(self) -> None:
        record = self._around.session.log.get_stream(1)
        self._worker = StreamWorker(
            "s", 0, StoredStream(record, 0, None), cast(Any, self._around), lambda identity: None
        )
        self._worker.context = cast(Context, self._around)
        self._around.paused = False
        self._worker.started()

    def push(self) -> None:
        payload = PUSH.encode_request(PushRequest(1, bytes(self._random.randint(1, 9))))
        self._around.mailbox.append(Message((STREAM,), (local("pusher"),), payload))

    def follow(self) -> None:
        next_index = self._around.session.log.get_stream(1).next_index
        start, limit = self._random.randint(0, next_index), self._random.randint(1, 6)
        address = local(f"follower {len(self.asked)}")
        self.asked[address] = start, limit
        request = PackedPull(len(self.asked) % 2, FromIndex(start), limit, int(WAIT_S * 1000), 0)
        self._around.mailbox.append(Message((STREAM,), (address,), PACKED_PULL.encode_request(request)))

    def receive(self) -> None:
        mailbox = self._around.mailbox
        self._worker.receive([mailbox.popleft() for _ in range(self._random.randint(1, len(mailbox)))])

    def hand_over(self) -> None:
        """Another worker goes on with the same stream and with what is not served yet."""
        self._around.mailbox.extendleft(reversed(self._worker.hand_over()))
        while self._around.writes:
            self._around.end_write(fails=False)
        self._start()

    def pass_time(self) -> None:
        self._clock.jump(self._random.choice((0.1, 1.0, WAIT_S)))
        self._around.end_timers()

    def step(self) -> None:
        around = self._around
        able: list[Callable[[], None]] = [self.push, self.follow, self.pass_time]
        if around.mailbox and not around.paused:
            able += [self.receive] * 4
        if around.writes:
            able += [lambda: around.end_write(fails=False)] * 2
        if around.reads:
            able += [lambda: around.end_read(self._random.randrange(len(around.reads)))] * 2
        if self._random.random() < 0.05:
            able = [self.hand_over]
        self._random.choice(able)()
        around.end_timers()
        if self._worker._pulls is not None:
            self._worker._pulls._machine.check()

    def finish(self) -> None:
        around = self._around
        while around.mailbox or around.writes or around.reads or around.timers:
            if around.writes:
                around.end_write(fails=False)
            elif around.reads:
                around.end_read(0)
            elif around.mailbox and not around.paused:
                self.receive()
            else:
                self.pass_time()
        around.database.close()

    def compare(self) -> int:
        """Returns the number of parts."""
        parts = 0
        for address, (start, limit) in self.asked.items():
            payloads = [each.payload for each in self._around.answers if each.onward_route == (address,)]
            pages = [PACKED_PULL.decode_response(each) for each in payloads]
            assert [page.more for page in pages] == [True] * (len(pages) - 1) + [False]
            seen = [each.index for page in pages for each in messages_of(page) or ()]
            assert seen == list(range(start, start + len(seen)))
            assert len(seen) <= limit
            assert pages[-1].resume_index == start + len(seen)
            parts += len(pages)
        return parts


@pytest.mark.parametrize("seeds", [range(start, start + 10) for start in range(0, 60, 10)], ids=lambda seeds: seeds[0])
async def test_parts_follow_each_other(mock_clock: MockClock, seeds: range) -> None:
    parts = asked = 0
    for seed in seeds:
        world = FollowedWorld(Random(seed), mock_clock)
        for _ in range(200):
            world.step()
        world.finish()
        parts += world.compare()
        asked += len(world.asked)
    assert parts > asked > 0, "some pages have several parts"
