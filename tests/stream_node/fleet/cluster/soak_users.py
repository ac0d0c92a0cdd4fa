"""Further users of real nodes: one that pushes with sequence numbers, one that waits for messages, one of a group."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import count

from index_service.extensions import FENCED_SAVE, LEASE, FencedSave, Lease, LeaseRequest, SaveStatus
from stream_client import ClientError, blocking
from stream_client.core.service_route import INDEX_SERVICE
from tests.stream_node.fleet.cluster.cluster_auditor import ClusterAuditor
from tests.stream_node.fleet.cluster.nodes import User

GROUP = "group"
PARTITIONS = 3
ANSWER_S = 20.0
PAUSE_S = 0.2
"""Between the pushes of a user, so that a run of an hour can be checked in a minute."""


class ManyNodes(User):
    """Works at one node after another: at the next one when a connection is lost. address: of some node."""

    def __init__(self, name: str, address: Callable[[], str]) -> None:
        super().__init__(name)
        self._address = address
        self.rng = random.Random(name)

    def work(self) -> None:
        while not self.is_over:
            try:
                with blocking.connect(self._address(), reconnect=None, answer_timeout_s=ANSWER_S) as client:
                    self.use(client)
            except (ClientError, OSError):
                # The end of a node, in all the ways in which a client sees it.
                time.sleep(0.1)

    def use(self, client: blocking.StreamClient) -> None:
        raise NotImplementedError


class Numbered(ManyNodes):
    """Pushes numbers from 0 with a window of 50 and with sequence numbers, so that each is stored once.

    confirmed: how many. sent: how many numbers were ever sent.
    """

    def __init__(self, address: Callable[[], str], stream: str) -> None:
        super().__init__(f"numbered {stream}", address)
        self._stream = stream
        self.confirmed = self.sent = 0

    def use(self, client: blocking.StreamClient) -> None:
        stream = client.create(self._stream)
        publisher = stream.publisher(50, idempotent=True, publisher_id=b"numbered", first_number=self.confirmed)
        with publisher:
            while not self.is_over or self.confirmed < self.sent:
                numbers = range(self.confirmed, self.confirmed + 50)
                self.sent = numbers.stop
                publisher.push_many([b"%d" % number for number in numbers])
                self.confirmed = self.sent
                time.sleep(PAUSE_S)

    def check(self, stored: list[bytes]) -> None:
        numbers = [int(each) for each in stored]
        assert numbers == list(range(len(numbers))), "the order is wrong, or a number is missing or there twice"
        assert self.confirmed <= len(numbers) <= self.sent


class Waiting(ManyNodes):
    """Reads a stream with pulls that wait for the next message. read: by index, the data."""

    def __init__(self, address: Callable[[], str], stream: str) -> None:
        super().__init__(f"waiting for {stream}", address)
        self._stream = stream
        self.read: dict[int, bytes] = {}

    def use(self, client: blocking.StreamClient) -> None:
        stream = client.create(self._stream)
        while not self.is_over:
            page = stream.pull_page(len(self.read), 500, wait_s=3.0)
            for message in page.messages:
                assert message.index == len(self.read), "a message was passed over"
                self.read[message.index] = message.data

    def check(self, stored: list[bytes]) -> None:
        for index, data in self.read.items():
            assert stored[index] == data, f"index {index} was read as {data!r} and is {stored[index]!r}"


class GroupMember(ManyNodes):
    """Shares partitions with the others of its group, and saves with leases that it has and had."""

    lock = threading.Lock()

    def __init__(self, address: Callable[[], str], stream: str, name: str, auditor: ClusterAuditor) -> None:
        super().__init__(name, address)
        self._stream = stream
        self._auditor = auditor
        self._ids = count(time.time_ns() // 1000)
        self._fences: dict[int, int] = {}
        self._known: list[tuple[int, int]] = []

    def use(self, client: blocking.StreamClient) -> None:
        while not self.is_over:
            kept = {each: fence for each, fence in self._fences.items() if self.rng.random() < 0.9}
            with self.lock:
                self._auditor.release(self._stream, self.name, frozenset(kept))
            holding, self._fences = [Lease(*each) for each in kept.items()], {}
            sent_s = time.monotonic()
            request = LeaseRequest(next(self._ids), GROUP, self._stream, self.name, PARTITIONS, holding, False)
            response = client.session.ask(INDEX_SERVICE, LEASE, request)
            until_s, now_s = sent_s + response.ttl_ms / 1000, time.monotonic()
            if until_s > now_s:
                usable = {lease.partition: lease.fence for lease in response.leases}
                with self.lock:
                    self._auditor.leases(self._stream, self.name, usable, until_s, now_s)
                self._fences = {each: fence for each, fence in usable.items() if each not in response.release}
                self._known += usable.items()
            if self._known:
                self._save(client)
            time.sleep(self.rng.random())

    def _save(self, client: blocking.StreamClient) -> None:
        partition, fence = self.rng.choice(self._known[-8:])
        with self.lock:
            newest = self._auditor.newest_fence(self._stream, partition)
            least = self._auditor.saved_index(GROUP, self._stream, partition)
        save = FencedSave(next(self._ids), GROUP, self._stream, partition, least + self.rng.randint(0, 3), fence)
        answer = client.session.ask(INDEX_SERVICE, FENCED_SAVE, save)
        fenced = answer.status is SaveStatus.FENCED
        with self.lock:
            self._auditor.saved_with(self._stream, partition, fence, newest, fenced=fenced)
            if not fenced:
                self._auditor.saw_saved(GROUP, self._stream, partition, answer.index, least)
