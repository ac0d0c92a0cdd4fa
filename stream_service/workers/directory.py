"""Which streams a node has, and their workers' common needs. It serves no requests."""

from __future__ import annotations

from collections.abc import Callable

from ockam.address import Address
from ockam.errors import AddressInUse
from ockam.node import Node
from storage.runner import Runner
from stream_service.counters import StreamCounters
from stream_service.extensions import Retention
from stream_service.limits import StreamLimits
from stream_service.names import generated_name, stream_address
from stream_service.stored import StoredStream
from stream_service.workers.stream import StreamWorker


class StreamDirectory:
    """Starts the workers of streams that are stored or made; it outlives crashes of the service worker.

    default_retention: of streams without one of their own. making: stream-partitions that are being stored just now.
    """

    def __init__(
        self,
        node: Node,
        storage: Runner,
        *,
        limits: StreamLimits,
        now_us: Callable[[], int],
        new_id: Callable[[], str],
        default_retention: Retention | None = None,
    ) -> None:
        self.counters = StreamCounters()
        self.node = node
        self.storage = storage
        self.limits = limits
        self.now_us = now_us
        self.default_retention = default_retention
        self.making = 0
        self._new_id = new_id
        self._addresses: dict[Address, None] = {}

    @property
    def count(self) -> int:
        """Stream-partitions served."""
        return len(self._addresses)

    def addresses(self) -> list[Address]:
        """Of all streams, in the order in which they were opened."""
        return list(self._addresses)

    def new_name(self) -> str:
        """A generated name that no stream has."""
        while True:
            name = generated_name(self._new_id)
            if not self.node.is_registered(stream_address(name, 0)):
                return name

    def open_stream(self, stream: StoredStream) -> None:
        """Start the worker of a stored stream, unless it runs. Raises AddressInUse where two names share an address."""
        name, partition = stream.record.name, stream.record.partition
        address = stream_address(name, partition)
        if self.node.is_registered(address):
            worker = self.node.find_worker(address)
            if not isinstance(worker, StreamWorker) or worker.identity != (name, partition):
                raise AddressInUse(f"the address of stream {name!r} belongs to another stream; choose another name")
            return
        first: list[StoredStream | None] = [stream]

        def make() -> StreamWorker:
            known, first[0] = first[0], None
            return StreamWorker(name, partition, known, self, lambda: self._close_stream(address))

        self.node.register([address], make)
        self._addresses[address] = None

    def apply_retention(self, address: Address) -> None:
        """Have one stream delete what it no longer keeps."""
        worker = self.node.find_worker(address)
        if isinstance(worker, StreamWorker):
            worker.care.apply_retention(self.default_retention)

    def _close_stream(self, address: Address) -> None:
        """The stream has been deleted."""
        self.node.unregister(address)
        self._addresses.pop(address, None)
