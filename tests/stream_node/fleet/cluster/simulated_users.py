"""Users of a simulated cluster: each has a connection to one member at a time, and begins anew when it is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

import trio

from index_service.extensions import FENCED_SAVE, LEASE, FencedSave, Lease, LeaseRequest, SaveStatus
from index_service.protocol import INDEX, GetIndex
from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.protocol import ERROR, Protocol
from stream_service.extensions import RICH_PULL, RICH_PUSH, FromIndex, RichPull, RichPush, RichStatus
from stream_service.extensions import Sequence as Numbering
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PUSH, CreateStream, PushRequest, Status
from tests.simulation.auditor import BrokenPromise
from tests.stream_node.fleet.cluster.cluster_auditor import ClusterAuditor
from tests.stream_node.fleet.cluster.pipes import Lane

A = TypeVar("A")
PATIENCE_S = 60.0
"""A request is answered within this time, or its connection ends. No fault of the simulation lasts so long."""
PARTITIONS = 3
GROUP = "group"
WINDOW_MAX = 20


class Lost(Exception):
    """The connection has ended."""


class Line:
    """A connection of a user, which has an address of its own. on_payload: gets what arrives."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.out: Lane | None = None
        self.lost = False
        self.changed = trio.Event()
        self.on_payload: Callable[[bytes], None] = lambda payload: None

    def arrived(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if not self.lost:
                self.on_payload(message.payload)
        self.wake()

    def ended(self) -> None:
        self.close()

    def close(self) -> None:
        self.lost = True
        if self.out is not None:
            self.out.end(loses=False)
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def tell(self, to: Address, payload: bytes) -> None:
        if self.out is None or self.lost:
            raise Lost
        self.out.put([Message((to,), (self.address,), payload)])

    async def wait_for(self, is_so: Callable[[], object], what: str) -> None:
        """Returns when it is so. Raises Lost, BrokenPromise."""
        with trio.move_on_after(PATIENCE_S) as patience:
            while not is_so():
                if self.lost:
                    raise Lost
                await self.changed.wait()
        if patience.cancelled_caught:
            raise BrokenPromise(f"{self.address} waits in vain for {what}")

    async def ask(self, to: Address, protocol: Protocol[Any, A], payload: bytes) -> A | None:
        """The answer; None if it is an error."""
        answers: list[A | None] = []

        def take(answer: bytes) -> None:
            if protocol.is_in(answer):
                answers.append(protocol.decode_response(answer))
            elif ERROR.is_in(answer):
                answers.append(None)

        self.on_payload = take
        self.tell(to, payload)
        await self.wait_for(lambda: answers, f"an answer to {protocol.name}")
        return answers[0]


class User:
    """What all users do: connect, work, and begin anew after the connection was lost.

    dial: connects a line to some member; False if none is reached. is_calm: whether the faults are over.
    """

    def __init__(
        self,
        name: str,
        rng: random.Random,
        auditor: ClusterAuditor,
        dial: Callable[[Line], bool],
        is_calm: Callable[[], bool],
    ) -> None:
        self.name = name
        self.rng = rng
        self.auditor = auditor
        self.is_calm = is_calm
        self._dial = dial
        self._lives = count()

    async def run(self) -> None:
        while True:
            line = Line(local(f"sim_{self.name}_{next(self._lives)}"))
            if not self._dial(line):
                await trio.sleep(0.5)
                continue
            try:
                await self.work(line)
            except Lost:
                await self.pause(0.5)
            else:
                line.close()
                return

    async def work(self, line: Line) -> None:
        raise NotImplementedError

    async def pause(self, s_max: float) -> None:
        await trio.sleep(round(self.rng.random() * s_max, 2))

    async def create(self, line: Line, stream: str) -> None:
        payload = CREATE.encode_request(CreateStream(stream))
        while await line.ask(local("stream_service"), CREATE, payload) is None:
            await self.pause(1.0)


class Publisher(User):
    """Pushes to a stream until the faults are over, and what is not confirmed then.

    numbers: whether its messages have sequence numbers. window: how many messages it has on their way.
    """

    def __init__(self, *arguments: Any, stream: str, numbers: bool, window: int) -> None:
        super().__init__(*arguments)
        self._stream = stream
        self._numbers = numbers
        self._window = window
        self._ids = count(1)
        self._made = 0
        self._unconfirmed: list[int] = []
        self._waiting: dict[int, tuple[int, bytes]] = {}
        self._refused: list[int] = []
        self.auditor.publishing += 1

    async def work(self, line: Line) -> None:
        await self.create(line, self._stream)
        self._waiting.clear()
        line.on_payload = self._hear
        # Numbers that are not confirmed are sent first, the lowest first. The first number must be known alone.
        resend = sorted(self._unconfirmed)
        while resend or self._unconfirmed or not self.is_calm():
            burst = self.rng.randint(1, self._window)
            window = 1 if self._numbers and self._made <= 1 else self._window
            while burst and len(self._waiting) < window:
                if not resend and self.is_calm():
                    break
                self._push(line, resend.pop(0) if resend else self._new())
                burst -= 1
            waiting = len(self._waiting)
            if waiting:
                await line.wait_for(lambda before=waiting: len(self._waiting) < before, "a confirm")  # type: ignore[misc]
            if self._refused:
                self._refused.clear()
                await self.pause(0.5)
                if self._numbers:
                    # The next connection sends all numbers again, from the lowest one that is not confirmed.
                    line.close()
                    raise Lost
                sent = {number for number, _ in self._waiting.values()}
                resend = sorted({*resend, *self._unconfirmed} - sent)
            if self._window == 1 or self.rng.random() < 0.3:
                await self.pause(0.4)
        if self._numbers:
            self.auditor.numbered(self._stream, self.name, self._made)
        self.auditor.publishing -= 1

    def _new(self) -> int:
        self._made += 1
        self._unconfirmed.append(self._made - 1)
        return self._made - 1

    def _push(self, line: Line, number: int) -> None:
        request_id = next(self._ids)
        if self._numbers:
            data = f"numbered {self.name}:{number}".encode()
            payload = RICH_PUSH.encode_request(
                RichPush(request_id, data, None, [], Numbering(self.name.encode(), number))
            )
        else:
            data = f"{self.name}:{number}:{request_id}".encode()
            payload = PUSH.encode_request(PushRequest(request_id, data))
            self.auditor.sent(self._stream, line.address, request_id, data)
        self._waiting[request_id] = number, data
        line.tell(stream_address(self._stream, 0), payload)

    def _hear(self, payload: bytes) -> None:
        if PUSH.is_in(payload):
            confirm = PUSH.decode_response(payload)
            request_id, index, is_stored = confirm.request_id, confirm.index, confirm.status is Status.OK
        elif RICH_PUSH.is_in(payload):
            rich = RICH_PUSH.decode_response(payload)
            request_id, index = rich.request_id, rich.index
            is_stored = rich.status in (RichStatus.OK, RichStatus.DUPLICATE)
        else:
            return
        number, data = self._waiting.pop(request_id)
        if is_stored:
            self.auditor.confirmed(self._stream, index, data)
            self._unconfirmed.remove(number)
        else:
            self._refused.append(number)


class Consumer(User):
    """Reads a stream to its end with pulls that wait, and goes on at its saved index now and then."""

    def __init__(self, *arguments: Any, stream: str) -> None:
        super().__init__(*arguments)
        self._stream = stream
        self._seen: set[int] = set()
        self._ids = count(1)

    async def work(self, line: Line) -> None:
        await self.create(line, self._stream)
        index_service, stream = local("stream_index_service"), self._stream
        position: int | None = None
        while not self.auditor.all_read(stream, self._seen):
            if position is None or self.rng.random() < 0.1:
                least = self.auditor.saved_index(self.name, stream, 0)
                answer = await line.ask(index_service, INDEX, INDEX.encode_request(GetIndex(self.name, stream)))
                if answer is None:
                    continue
                position = answer.index or 0
                self.auditor.saw_saved(self.name, stream, 0, position, least)
            pull = RichPull(
                next(self._ids), FromIndex(position), self.rng.choice((1, 5, 100)), self.rng.choice((0, 800))
            )
            page = await line.ask(stream_address(stream, 0), RICH_PULL, RICH_PULL.encode_request(pull))
            if page is None:
                await self.pause(0.5)
                continue
            for message in page.messages:
                self._seen.add(message.index)
                self.auditor.read(stream, message.index, message.data)
            if page.messages:
                position = page.messages[-1].index + 1
                save = FencedSave(next(self._ids), self.name, stream, 0, position, None)
                least = self.auditor.saved_index(self.name, stream, 0)
                saved = await line.ask(index_service, FENCED_SAVE, FENCED_SAVE.encode_request(save))
                if saved is not None:
                    self.auditor.saw_saved(self.name, stream, 0, saved.index, max(least, position))
            else:
                await self.pause(0.5)


class GroupMember(User):
    """Shares the partitions of a stream with the others of its group until the faults are over."""

    def __init__(self, *arguments: Any, stream: str) -> None:
        super().__init__(*arguments)
        self._stream = stream
        self._ids = count(1)
        self._fences: dict[int, int] = {}
        self._known: list[tuple[int, int]] = []

    async def work(self, line: Line) -> None:
        index_service, stream, auditor = local("stream_index_service"), self._stream, self.auditor
        while not self.is_calm():
            kept = {each: fence for each, fence in self._fences.items() if self.rng.random() < 0.9}
            auditor.release(stream, self.name, frozenset(kept))
            holding = [Lease(partition, fence) for partition, fence in kept.items()]
            request = LeaseRequest(next(self._ids), GROUP, stream, self.name, PARTITIONS, holding, False)
            sent_s = trio.current_time()
            self._fences = {}
            response = await line.ask(index_service, LEASE, LEASE.encode_request(request))
            now_s = trio.current_time()
            until_s = sent_s if response is None else sent_s + response.ttl_ms / 1000
            if response is not None and until_s > now_s:
                usable = {lease.partition: lease.fence for lease in response.leases}
                auditor.leases(stream, self.name, usable, until_s, now_s)
                self._fences = {each: fence for each, fence in usable.items() if each not in response.release}
                self._known += usable.items()
            await self._save(line)
            await self.pause(1.5)
        auditor.release(stream, self.name)

    async def _save(self, line: Line) -> None:
        """Saves with a lease that this member has or had."""
        if not self._known:
            return
        stream, auditor = self._stream, self.auditor
        partition, fence = self.rng.choice(self._known[-6:])
        newest = auditor.newest_fence(stream, partition)
        least = auditor.saved_index(GROUP, stream, partition)
        save = FencedSave(next(self._ids), GROUP, stream, partition, least + self.rng.randint(0, 3), fence)
        answer = await line.ask(local("stream_index_service"), FENCED_SAVE, FENCED_SAVE.encode_request(save))
        if answer is not None:
            fenced = answer.status is SaveStatus.FENCED
            auditor.saved_with(stream, partition, fence, newest, fenced=fenced)
            if not fenced:
                auditor.saw_saved(GROUP, stream, partition, answer.index, least)
