"""The stream service: makes streams, and knows which exist. What a stream does is its own worker's business.

A create is made durable first; then the request is handed to the stream's own worker, which answers it with its Init,
so that the way back in the answer is the stream's address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from ockam.address import local
from ockam.errors import AddressInUse
from ockam.message import Message
from ockam.node import Node
from ockam.protocol import Protocol, ProtocolError, error_payload, find_name
from ockam.worker import Worker
from storage.contract import StreamRecord
from storage.errors import StorageError
from storage.runner import Runner
from stream_service import protocol
from stream_service.counters import StreamCounters
from stream_service.limits import StreamLimits
from stream_service.names import generated_name, refusal_of_name, stream_address
from stream_service.operations import EnsureStreams
from stream_service.protocol import CREATE, CREATE_PARTITIONED, CREATE_PARTITIONS, CreatePartitions, CreateStream
from stream_service.workers.stream import StreamWorker

SERVICE_ADDRESSES = ("stream_service", "stream", "stream_kafka")
"""The specification's address, and those under which the real clients look for the service."""

logger = structlog.get_logger(__name__)


class StreamDirectory:
    """Starts the workers of the streams that are stored, and makes more; it outlives crashes of the service worker."""

    def __init__(
        self,
        node: Node,
        storage: Runner,
        *,
        limits: StreamLimits,
        now_us: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.counters = StreamCounters()
        self.node = node
        self.storage = storage
        self.limits = limits
        self.now_us = now_us
        self.new_id = new_id
        self.partitions: dict[str, int] = {}
        self.count = 0

    def open_stream(self, record: StreamRecord) -> None:
        """Start the worker of a stored stream, unless it runs. Raises AddressInUse where two names share an address."""
        name, partition = record.name, record.partition
        address = stream_address(name, partition)
        if self.node.is_registered(address):
            worker = self.node.find_worker(address)
            if not isinstance(worker, StreamWorker) or worker.identity != (name, partition):
                raise AddressInUse(f"the address of stream {name!r} belongs to another stream; choose another name")
            return
        first: list[StreamRecord | None] = [record]

        def make() -> StreamWorker:
            known, first[0] = first[0], None
            return StreamWorker(name, partition, known, self.storage, self.limits, self.now_us, self.counters)

        self.node.register([address], make)
        self.count += 1
        self.partitions[name] = max(self.partitions.get(name, 0), partition + 1)


class ServiceWorker(Worker):
    """Serves `stream_create` and its two partitioned names; everything else gets an error."""

    def __init__(self, directory: StreamDirectory) -> None:
        self._directory = directory

    def handle(self, message: Message) -> None:
        try:
            self._create(message)
        except ProtocolError as error:
            self._directory.counters.refuse(self, message, str(error))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)

    def _create(self, message: Message) -> None:
        payload = message.payload
        if CREATE.is_in(payload):
            name, partitions = self._name(CREATE.decode_request(payload).stream_name), 1
            forwarded = CREATE.encode_request(CreateStream(name))
        else:
            partitioned = _partitioned_protocol(payload)
            request = partitioned.decode_request(payload)
            name, partitions = self._name(request.stream_name), request.partitions
            self._check_partitions(partitions)
            forwarded = partitioned.encode_request(CreatePartitions(name, partitions))
        routes = [(stream_address(name, partition),) for partition in range(partitions)]
        missing = [
            partition for partition, route in enumerate(routes) if not self._directory.node.is_registered(route[0])
        ]
        requests = [Message(route, message.return_route, forwarded, message.origin) for route in routes]
        if not missing:
            self.context.send_run(requests)
            return
        if self._directory.count + len(missing) > self._directory.limits.streams_max:
            raise ProtocolError(f"this node serves at most {self._directory.limits.streams_max} streams")
        made = self.context.guard(lambda operation: self._made(operation, message, requests))
        self._directory.storage.submit_write(EnsureStreams(name, missing, self._directory.now_us(), on_done=made))

    def _made(self, operation: EnsureStreams, message: Message, requests: Sequence[Message]) -> None:
        if operation.error is not None:
            self._directory.counters.creates_failed += 1
            logger.error("create_failed", stream=operation.name, reason=str(operation.error))
            self._later(message, operation.error)
            return
        try:
            for record in operation.records:
                self._directory.open_stream(record)
        except AddressInUse as error:
            self._directory.counters.refuse(self, message, str(error))
            return
        self.context.send_run(requests)

    def _later(self, message: Message, error: StorageError) -> None:
        """A failed create is answered late, so that a peer that asks again at once cannot spin."""
        self.context.call_later(
            self._directory.limits.error_delay_s,
            lambda: self.reply(message, error_payload(f"the stream cannot be made: {error}")),
        )

    def _name(self, asked: str | None) -> str:
        if asked is None:
            name = generated_name(self._directory.new_id)
            while name in self._directory.partitions:
                name = generated_name(self._directory.new_id)
            return name
        refusal = refusal_of_name(asked)
        if refusal is not None:
            raise ProtocolError(refusal)
        return asked

    def _check_partitions(self, partitions: int) -> None:
        most = self._directory.limits.partitions_max
        if not 1 <= partitions <= most:
            raise ProtocolError(f"{partitions} partitions; a stream has 1 to {most}")


def _partitioned_protocol(payload: bytes) -> Protocol[CreatePartitions, protocol.PartitionCreated]:
    for candidate in (CREATE_PARTITIONED, CREATE_PARTITIONS):
        if candidate.is_in(payload):
            return candidate
    name = find_name(payload)
    raise ProtocolError(
        f"the stream service serves no {name!r}" if name is not None else "the payload names no protocol"
    )


def register_service(directory: StreamDirectory, addresses: Sequence[str] = SERVICE_ADDRESSES) -> None:
    """Start the service worker under its addresses."""
    directory.node.register([local(address) for address in addresses], lambda: ServiceWorker(directory))
