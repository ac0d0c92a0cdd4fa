"""Goal: whatever comes when, a stream confirms pushes in order, and a pull sees every push that came before it.

Method: a whole worker without a node. Its disk commits or fails when a seeded random says so, and its mailbox hands
over messages only while the worker lets it. What was sent, answered and stored is compared at the end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, cast

import pytest

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.worker import Context
from ockam.protocol import Protocol
from stream_service.appending import (
    APPEND,
    COPY,
    AppendedMessage,
    AppendRequest,
    AppendStatus,
    CopiedMessage,
    CopyRequest,
)
from stream_service.counters import StreamCounters
from stream_service.extensions import (
    BATCHED,
    PUSH_BATCH,
    RICH_PULL,
    RICH_PUSH,
    FromIndex,
    PushBatch,
    RichPull,
    RichPush,
    RichStatus,
    Sequence,
)
from stream_service.limits import StreamLimits
from stream_service.protocol import CREATE, PULL, PUSH, CreateStream, PullRequest, PushRequest, Status
from stream_service.stored import StoredStream
from stream_service.workers import stream_machine
from stream_service.workers.clock import Clock
from stream_service.workers.stream import StreamWorker
from stream_service.workers.stream_machine import StreamActivity
from stream_service.workers.stream_services import TruncationTurns
from stream_service.workers.tail_machine import Tails
from stream_storage.contract import Operation
from stream_storage.errors import StorageError
from tests.support.storage.memory import MemoryDatabase

STREAM, CLIENT = local("s"), local(f"{BATCHED.decode()}client")
KINDS = {
    "push": 6,
    "pull": 2,
    "rich pull": 1,
    "rich push": 1,
    "sequenced push": 1,
    "push again": 1,
    "create": 1,
    "batch": 2,
} | {
    "copy": 1,
    "append": 1,
    "garbage": 1,
}
"""The requests that are sent, each as often as its number says."""


class Around:
    """What surrounds the worker: its context, its storage, and what all streams of a node share."""

    address = STREAM

    def __init__(self) -> None:
        # Without a tail, so that pulls are read, and their reads end whenever they end.
        self.database = MemoryDatabase()
        self.session = self.database.session()
        self.limits = StreamLimits(error_delay_s=0.0)
        self.counters = StreamCounters()
        self.tails = Tails(0, 0)
        self.truncation_turns = TruncationTurns(self.limits.truncating_messages)
        self.clock = Clock(lambda: 1, lambda: 0.0)
        self.storage: Any = self
        self.mailbox: deque[Message] = deque()
        self.tracing = None
        self.has_rules = False
        self.pass_on = None
        self.holds: dict[tuple[str, int], str] = {}
        self.paused = False
        self.writes: deque[Operation] = deque()
        self.reads: list[Operation] = []
        self.calls: deque[Callable[[], None]] = deque()
        self.answers: list[Message] = []

    def now_us(self) -> int:
        return self.clock.time_us()

    def role_changed(self, identity: tuple[str, int], row: object) -> None:
        raise AssertionError("no role changes here")

    def forget_positions(self, session: object, name: str, partition: int) -> None:
        raise AssertionError("nothing is deleted here")

    def mirror_seen(self, identity: tuple[str, int], origin: object, mirror: object) -> None:
        raise AssertionError("no mirror asks here")

    def may_follow(self, origin: object, name: str) -> bool:
        raise AssertionError("nobody asks for a role here")

    # As a context

    def send(self, message: Message) -> bool:
        self.answers.append(message)
        return True

    def send_run(self, messages: Iterable[Message]) -> None:
        self.answers += messages

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def guard(self, function: Callable[..., None]) -> Callable[..., None]:
        return function

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        self.calls.append(function)

    # As a storage

    def submit_write(self, operation: Operation) -> None:
        self.writes.append(operation)

    def submit_read(self, operation: Operation) -> None:
        self.reads.append(operation)

    def end_write(self, *, fails: bool) -> None:
        operation = self.writes.popleft()
        if fails:
            operation.error = StorageError("planted")
        else:
            self.session.begin()
            operation.apply(self.session)
            self.session.commit()
        operation.on_done(operation)

    def end_read(self, position: int) -> None:
        operation = self.reads.pop(position)
        operation.apply(self.session)
        operation.on_done(operation)


class World:
    """Each message that is sent has its own request id, which is its place among all that were sent."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._around = around = Around()
        around.session.begin()
        record = around.session.log.ensure_stream("s", 0, 0)
        around.session.commit()
        self._worker = StreamWorker("s", 0, StoredStream(record, 0, None), cast(Any, around), lambda identity: None)
        self._worker.context = cast(Context, around)
        self._worker.started()
        self._sent: list[Message] = []
        self._next_number = 0
        self._creates: list[int] = []
        self._copied: list[int] = []
        self.states: Counter[StreamActivity] = Counter()

    def _send(self, protocol: Protocol[Any, Any], request: Any) -> None:
        self._queue(protocol.encode_request(request))

    def _queue(self, payload: bytes) -> None:
        message = Message((STREAM,), (CLIENT,), payload)
        self._sent.append(message)
        self._around.mailbox.append(message)

    def send(self) -> None:
        for kind in self._random.choices(list(KINDS), list(KINDS.values()), k=self._random.randint(1, 8)):
            number = len(self._sent)
            data = b"%d" % number
            match kind:
                case "push":
                    self._send(PUSH, PushRequest(number, data))
                case "batch":
                    # Each push of a batch has a number of its own, as if it had been sent alone.
                    count = self._random.randint(1, 4)
                    messages = [b"%d" % (number + place) for place in range(count)]
                    self._send(PUSH_BATCH, PushBatch(number, messages))
                    self._sent += [self._sent[-1]] * (count - 1)
                case "rich push":
                    self._send(RICH_PUSH, RichPush(number, data, b"key", [], None))
                case "sequenced push" | "push again":
                    self._next_number += kind == "sequenced push" or not self._next_number
                    sequence = Sequence(b"me", self._next_number - 1)
                    self._send(RICH_PUSH, RichPush(number, data, None, [], sequence))
                case "pull":
                    self._send(PULL, PullRequest(number, 0, 1_000))
                case "rich pull":
                    self._send(RICH_PULL, RichPull(number, FromIndex(0), 1_000, 0))
                case "create":
                    self._creates.append(number)
                    self._send(CREATE, CreateStream("s"))
                case "copy":
                    # To the end as it is now; it may have moved when the request is handled.
                    index = max(1, self._around.session.log.get_stream(1).next_index)
                    self._copied.append(number)
                    self._send(COPY, CopyRequest(number, index, [CopiedMessage(1, None, [], data)]))
                case "append":
                    # As for a copy; another message is stored at the index if it has moved.
                    expected = self._around.session.log.get_stream(1).next_index
                    self._copied.append(number)
                    self._send(APPEND, AppendRequest(number, expected, None, [AppendedMessage(None, [], data)]))
                case "garbage":
                    self._queue(PUSH.tag + b"\x01\xff")

    def step(self) -> None:
        """One of the things that can happen now; each of them, and not each message, is as likely as the others."""
        around, random = self._around, self._random
        able: list[Callable[[], None]] = [self.send]
        if around.mailbox and not around.paused:
            able += [self._hand_over] * 2
        if around.writes:
            able.append(lambda: around.end_write(fails=random.random() < 0.1))
        if around.reads:
            able.append(lambda: around.end_read(random.randrange(len(around.reads))))
        if around.calls:
            able.append(lambda: around.calls.popleft()())
        random.choice(able)()
        self._check()

    def finish(self) -> None:
        """Let everything end, and compare."""
        around = self._around
        while around.mailbox or around.writes or around.reads or around.calls:
            if around.writes:
                around.end_write(fails=False)
            elif around.reads:
                around.end_read(0)
            elif around.calls:
                around.calls.popleft()()
            else:
                assert not around.paused, "the worker waits, and nothing is under way"
                self._hand_over()
            self._check()
        self._compare()
        around.database.close()

    def _hand_over(self) -> None:
        mailbox = self._around.mailbox
        self._worker.receive([mailbox.popleft() for _ in range(self._random.randint(1, len(mailbox)))])

    def _check(self) -> None:
        """One thing is under way at most, and the mailbox waits exactly while it must."""
        machine, gathered = self._worker._machine, self._worker._gathered
        machine.check()
        if self._worker._pulls is not None:
            self._worker._pulls._machine.check()
        assert len(self._around.writes) <= 1
        assert len(self._around.reads) <= 2, "one read of pages, and one of sequence numbers"
        assert self._around.paused == (not machine.accepts)
        assert len(gathered) == len(gathered.data) == machine.staged_messages
        assert not gathered.answers_behind
        self.states[machine.state] += 1

    def _compare(self) -> None:
        log = {index: int(data) for index, data, *_ in self._around.session.log.read(1, 0, 10_000, 1 << 30)}
        place_of = {number: index for index, number in log.items()}
        assert len(place_of) == len(log), "a message is stored twice"
        assert list(log.values()) == sorted(log.values()), "a message has overtaken another"
        answered = sum(_answered(answer.payload) for answer in self._around.answers)
        assert answered == len(self._sent), "each request has one answer"
        confirmed: list[int] = []
        created: list[set[int]] = []
        for answer in self._around.answers:
            payload = answer.payload
            if PUSH.is_in(payload):
                confirm = PUSH.decode_response(payload)
                assert (confirm.status is Status.OK) == (confirm.request_id in place_of)
                if confirm.status is Status.OK:
                    assert place_of[confirm.request_id] == confirm.index
                    confirmed.append(confirm.request_id)
            elif PUSH_BATCH.is_in(payload):
                joined = PUSH_BATCH.decode_response(payload)
                for place in range(joined.count):
                    number = joined.request_id + place
                    assert (joined.failure is None) == (number in place_of)
                    if joined.failure is None:
                        assert place_of[number] == joined.index + place
                        confirmed.append(number)
            elif RICH_PUSH.is_in(payload):
                rich = RICH_PUSH.decode_response(payload)
                assert (rich.status is RichStatus.OK) == (rich.request_id in place_of)
                if rich.status is RichStatus.OK:
                    assert place_of[rich.request_id] == rich.index
                    confirmed.append(rich.request_id)
            elif CREATE.is_in(payload):
                created.append({number for number in place_of if number < self._creates[len(created)]} - {*confirmed})
            elif COPY.is_in(payload):
                copied = COPY.decode_response(payload)
                assert copied.stored == (copied.request_id in place_of)
            elif APPEND.is_in(payload):
                appended = APPEND.decode_response(payload)
                assert (appended.status is AppendStatus.OK) == (appended.request_id in place_of)
            elif PULL.is_in(payload):
                page = PULL.decode_response(payload)
                self._sees_all_before(page.request_id, log, {each.index for each in page.messages})
            elif RICH_PULL.is_in(payload):
                rich_page = RICH_PULL.decode_response(payload)
                self._sees_all_before(rich_page.request_id, log, {each.index for each in rich_page.messages})
        assert len(created) == len(self._creates)
        assert not {number for missing in created for number in missing} - {*self._copied}, (
            "a create is answered behind the confirms before it"
        )
        assert confirmed == sorted(confirmed), "confirms are in the order of their pushes"

    def _sees_all_before(self, request_id: int, log: dict[int, int], seen: set[int]) -> None:
        assert {index for index, number in log.items() if number < request_id} <= seen


def _answered(payload: bytes) -> int:
    """How many requests this answers."""
    return PUSH_BATCH.decode_response(payload).count if PUSH_BATCH.is_in(payload) else 1


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 150, 25)], ids=lambda seeds: seeds[0])
def test_whatever_comes_when_everything_keeps_its_order(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setattr(stream_machine, "STAGED_BEHIND_MIN", 3)
    states: Counter[StreamActivity] = Counter()
    for seed in seeds:
        world = World(Random(seed))
        for _ in range(150):
            world.step()
        world.finish()
        states += world.states
    assert states.keys() == set(StreamActivity) - {StreamActivity.OPENING, StreamActivity.CLOSED}
