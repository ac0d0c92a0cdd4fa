"""A node in memory, for clients in virtual time: streams, positions and leases, with the node's own lease machine."""

from __future__ import annotations

from collections import defaultdict

from index_service.extensions import FENCED_SAVE, LEASE, LeaseResponse, SaveResponse, SaveStatus
from index_service.lease_machine import LeaseMachine
from index_service.protocol import INDEX_PARTITIONED, GetPartitionIndex, PartitionIndex
from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.protocol import error_payload, find_name
from stream_service.extensions import RICH_PULL, FromEnd, FromIndex, RichMessage, RichPage
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    PartitionCreated,
    PullResponse,
    StreamCreated,
    StreamMessage,
)
from tests.client.machines.virtual import Answers, Clock

TTL_S = 10.0


class MemoryNode:
    """Answers messages as a node does. first: messages below that index are deleted, by partition.

    rich: whether it has our own pull; without it only the specification's. silent: pulls get no answer.
    """

    def __init__(self, clock: Clock, *, rich: bool = True) -> None:
        self.clock = clock
        self.rich = rich
        self.silent = False
        self.streams: dict[Address, list[bytes]] = defaultdict(list)
        self.first: dict[Address, int] = defaultdict(int)
        self.indexes: dict[int, int] = defaultdict(int)
        self.saves: list[tuple[int, int]] = []
        self.leases = LeaseMachine([], old_until_s=0.0, ttl_s=TTL_S)
        self.pulls = 0

    def __call__(self, message: Message) -> Answers:
        payload, address = message.payload, message.onward_route[0]
        if CREATE.is_in(payload):
            name = CREATE.decode_request(payload).stream_name or "generated"
            yield self.address(0), CREATE.encode_response(StreamCreated(name))
        elif CREATE_PARTITIONED.is_in(payload):
            request = CREATE_PARTITIONED.decode_request(payload)
            for partition in range(request.partitions):
                created = PartitionCreated(request.stream_name or "generated", partition)
                yield self.address(partition), CREATE_PARTITIONED.encode_response(created)
        elif PULL.is_in(payload) or RICH_PULL.is_in(payload):
            self.pulls += 1
            if not self.silent:
                yield address, self._page(payload, address)
        elif INDEX_PARTITIONED.is_in(payload):
            yield from self._index(payload, address)
        elif FENCED_SAVE.is_in(payload):
            yield address, self._fenced_save(payload)
        elif LEASE.is_in(payload):
            yield address, self._lease(payload)
        else:
            yield address, error_payload(f"{find_name(payload)} is not served here")

    @staticmethod
    def address(partition: int) -> Address:
        return local(f"stream {partition}")

    def fill(self, partition: int, count: int) -> None:
        stream = self.streams[self.address(partition)]
        stream += [b"%d" % (len(stream) + number) for number in range(count)]

    def _page(self, payload: bytes, address: Address) -> bytes:
        stored, first = self.streams[address], self.first[address]
        if PULL.is_in(payload):
            plain = PULL.decode_request(payload)
            start = max(plain.index, first)
            messages = [StreamMessage(at, stored[at]) for at in range(start, min(start + plain.limit, len(stored)))]
            return PULL.encode_response(PullResponse(plain.request_id, messages))
        if not self.rich:
            return error_payload("a stream serves no such thing")
        request = RICH_PULL.decode_request(payload)
        start = len(stored)
        if isinstance(request.start, FromIndex):
            start = max(request.start.index, first)
        elif isinstance(request.start, FromEnd):
            start = max(first, len(stored) - request.start.messages)
        end = min(start + request.limit, len(stored))
        found = [RichMessage(at, 1, None, [], stored[at]) for at in range(start, end)]
        return RICH_PULL.encode_response(RichPage(0, first, len(stored), max(start, end), found))

    def _index(self, payload: bytes, address: Address) -> Answers:
        request = INDEX_PARTITIONED.decode_request(payload)
        if isinstance(request, GetPartitionIndex):
            index = self.indexes[request.partition]
            answer = PartitionIndex(request.client_id, request.stream_name, request.partition, index)
            yield address, INDEX_PARTITIONED.encode_response(answer)
        else:
            self._save(request.partition, request.index)

    def _save(self, partition: int, index: int) -> None:
        self.saves.append((partition, index))
        self.indexes[partition] = max(self.indexes[partition], index)

    def _fenced_save(self, payload: bytes) -> bytes:
        request = FENCED_SAVE.decode_request(payload)
        self.leases.expire(self.clock.now_s)
        member = self.leases.find_holder(request.partition, self.clock.now_s)
        terms = {} if member is None else self._held(member)
        if terms.get(request.partition) != request.fence:
            return FENCED_SAVE.encode_response(SaveResponse(0, SaveStatus.FENCED, self.indexes[request.partition]))
        self._save(request.partition, request.index)
        return FENCED_SAVE.encode_response(SaveResponse(0, SaveStatus.OK, self.indexes[request.partition]))

    def _held(self, member_id: str) -> dict[int, int]:
        member = self.leases.find_member(member_id)
        if member is None or member.latest is None:
            return {}
        terms = self.leases.answer(member.latest, self.clock.now_s)
        return {lease.partition: lease.fence for lease in terms.leases}

    def _lease(self, payload: bytes) -> bytes:
        request = LEASE.decode_request(payload)
        self.leases.request(request, self.clock.now_s)
        self.leases.written(self.leases.take_changes(), stored=True)
        terms = self.leases.answer(request, self.clock.now_s)
        answer = LeaseResponse(request.request_id, terms.leases, terms.release, int(TTL_S * 1000), terms.members)
        return LEASE.encode_response(answer)
