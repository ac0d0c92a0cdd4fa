"""The node's end of a client core, without I/O: what it sent, and answers for it. For tests byte by byte."""

from __future__ import annotations

import pytest

from ockam.actors.address import Address, Route, local
from ockam.actors.message import HERE, Message
from ockam.protocol import error_payload
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_service.extensions import (
    INDEX_KNOWN,
    PUSH_BATCH,
    PUSH_FAILED,
    RICH_PUSH,
    TOLD,
    BatchAnswer,
    Outcome,
    PushBatch,
    PushFailure,
    RichConfirm,
    RichPush,
    RichStatus,
)
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PUSH,
    PartitionCreated,
    PushConfirm,
    PushRequest,
    Status,
    StreamCreated,
)


class FarEnd:
    """One connection of a core. hello: what this end still has to say first."""

    def __init__(self, core: ClientCore, wire: Wire = HEAD) -> None:
        self.core = core
        self._wire = wire
        self._reader = FrameReader(wire, HERE)
        self._hello_due = self._hello_sent = wire.hello
        core.connected(wire)

    def sent(self) -> list[Message]:
        """What the core has sent since the last call."""
        data = self.core.connection.data_to_send()
        if self._hello_due:
            assert data.startswith(self._hello_due)
            data, self._hello_due = data[len(self._hello_due) :], b""
        return self._reader.feed(data)

    def frame(self, to: Route, payload: bytes, from_: Address) -> bytes:
        """One answer, as bytes."""
        message = Message((local("-"), *to), (from_,), payload)
        hello, self._hello_sent = self._hello_sent, b""
        return hello + FrameWriter(self._wire).encode([message], lambda error: pytest.fail(str(error)))[1]

    def answer(self, to: Message, payload: bytes, from_: Address | None = None) -> None:
        """Answer one message of the core; from where it was sent to, unless said otherwise."""
        self.core.receive_data(self.frame(to.return_route, payload, from_ or to.onward_route[-1]))

    def refuse(self, to: Message, reason: str = "no") -> None:
        self.answer(to, error_payload(reason))

    def answer_create(self, create: Message, address: str = "ST") -> None:
        """An Init for each partition that was asked for; the addresses are `address` and the partition."""
        if CREATE.is_in(create.payload):
            name = CREATE.decode_request(create.payload).stream_name or "generated"
            self.answer(create, CREATE.encode_response(StreamCreated(name)), local(f"{address}0"))
            return
        request = CREATE_PARTITIONED.decode_request(create.payload)
        for partition in reversed(range(request.partitions)):
            response = PartitionCreated(request.stream_name or "generated", partition)
            self.answer(create, CREATE_PARTITIONED.encode_response(response), local(f"{address}{partition}"))

    def confirm(self, push: Message, index: int, status: Status = Status.OK) -> None:
        request = PUSH.decode_request(push.payload)
        self.answer(push, PUSH.encode_response(PushConfirm(request.request_id, status, index)))

    def confirm_many(self, push: Message, count: int, index: int, request_id: int | None = None) -> None:
        """Answer `count` pushes in one message, the first of them being this push, or the first one of this batch."""
        if request_id is None:
            request_id = (PUSH if PUSH.is_in(push.payload) else PUSH_BATCH).decode_request(push.payload).request_id
        self.answer(push, PUSH_BATCH.encode_response(BatchAnswer(request_id, count, index, None)))

    def fail(self, push: Message, reason: str, outcome: Outcome = Outcome.NOT_STORED) -> None:
        """As a node answers a push that it did not confirm, to a client that understands it."""
        protocol = RICH_PUSH if RICH_PUSH.is_in(push.payload) else PUSH
        request_id = protocol.decode_request(push.payload).request_id
        assert push.return_route[-1].value.startswith(TOLD), "the client did not say that it understands this"
        self.answer(push, PUSH_FAILED.encode_response(PushFailure(request_id, outcome, reason)))

    def confirm_rich(
        self, push: Message, index: int | None, status: RichStatus = RichStatus.OK, expected: int = 0
    ) -> None:
        """index: None for a duplicate whose index is forgotten."""
        request = RICH_PUSH.decode_request(push.payload)
        if status is RichStatus.DUPLICATE and index is not None:
            expected = INDEX_KNOWN
        self.answer(push, RICH_PUSH.encode_response(RichConfirm(request.request_id, status, index or 0, expected)))


def connected_core() -> tuple[ClientCore, FarEnd]:
    core = ClientCore()
    return core, FarEnd(core)


def opened(core: ClientCore, far: FarEnd, name: str = "s", partitions: int = 1) -> list[PartitionHandle]:
    """Ports of a stream that has just been made."""
    call = core.create(name, partitions)
    (create,) = far.sent()
    far.answer_create(create)
    return core.streams.handles(call)


def is_create(message: Message) -> bool:
    return CREATE.is_in(message.payload) or CREATE_PARTITIONED.is_in(message.payload)


def pushes(messages: list[Message]) -> list[PushRequest]:
    return [PUSH.decode_request(each.payload) for each in messages if PUSH.is_in(each.payload)]


def batches(messages: list[Message]) -> list[PushBatch]:
    return [PUSH_BATCH.decode_request(each.payload) for each in messages if PUSH_BATCH.is_in(each.payload)]


def rich_pushes(messages: list[Message]) -> list[RichPush]:
    return [RICH_PUSH.decode_request(each.payload) for each in messages if RICH_PUSH.is_in(each.payload)]
