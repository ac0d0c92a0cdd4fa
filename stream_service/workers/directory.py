"""StreamDirectory: lists the streams of a node and starts their workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from ockam.actors.address import Address
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.errors import AddressInUse
from ockam.identity.identity import NODE
from ockam.identity.rules.rules import ANYTHING_TO_ANYBODY, Rule, Rules
from ockam.quotas.usage import Usage
from ockam.transport.forwarding import RemoteStreams
from stream_service.extensions import Retention
from stream_service.limits import StreamLimits
from stream_service.names import GENERATED_PREFIX, stream_address
from stream_service.stored import StoredStream
from stream_service.workers.admin import find_kept, usable_retention
from stream_service.workers.clock import Clock
from stream_service.workers.readable_stream import ReadableStream, ReadOnlyStream
from stream_service.workers.stream import StreamWorker
from stream_service.workers.stream_services import StreamServices
from stream_storage.contract import Do, StreamRecord
from stream_storage.runner import Runner

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing


class Reservation(NamedTuple):
    """The places of partitions that are about to be made. counted: the number of them that `usage` has counted."""

    addresses: Sequence[Address]
    usage: Usage
    counted: int


class StreamDirectory(StreamServices):
    """The list of all streams of a node. It survives crashes of the service worker.

    new_id: returns a new random text, from which stream names are generated.
    keepers: rules for the streams that a part of the node writes, such as the block node. Clients may only read them.
    remote_streams: tells which streams other nodes of a cluster serve; None: this node serves all streams.
    """

    def __init__(
        self,
        node: Node,
        storage: Runner,
        *,
        limits: StreamLimits,
        clock: Clock,
        new_id: Callable[[], str],
        default_retention: Retention | None = None,
        keepers: Sequence[Rule] = (),
        tracing: Tracing | None = None,
        remote_streams: RemoteStreams | None = None,
    ) -> None:
        super().__init__(node, storage, limits, clock, tracing)
        self.remote_streams = remote_streams
        self.default_retention = default_retention  # that of streams without a retention of their own
        # by address, the number of requests that are creating a stream-partition now
        self.making: Counter[Address] = Counter()
        # These rules only protect the streams of `keepers`. The node's gate has applied rules of the operator before.
        self.kept = Rules([*keepers, *ANYTHING_TO_ANYBODY])
        self._keepers = tuple(keepers)
        self.new_id = new_id
        self.changes = 0  # how often a partition was added or removed
        # By address: the partition, while its worker sleeps (`Node.register_asleep`); None while the worker runs.
        self._addresses: dict[Address, StoredStream | None] = {}

    @property
    def count(self) -> int:
        return len(self._addresses)

    def addresses(self) -> list[Address]:
        return list(self._addresses)

    def new_name(self) -> str:
        while True:
            name = f"{GENERATED_PREFIX}{self.new_id()[:8]}"
            if not self.node.is_registered(stream_address(name, 0)):
                return name

    def find_keeper(self, name: str) -> Rule | None:
        """Returns the rule by which only a part of the node may write a stream of this name, or None."""
        return next((rule for rule in self._keepers if name.startswith(rule.on)), None)

    def is_read_only(self, name: str) -> bool:
        # The node's own workers write their streams by messages, like clients.
        keeper = self.find_keeper(name)
        return keeper is not None and keeper.keeper != NODE

    def reserve(self, origin: Origin, addresses: Sequence[Address]) -> Reservation | str:
        """Counts partitions that are about to be made, until `give_back`. If there are too many, counts none of them
        and returns the reason."""
        # Partitions that are being created count too, each once. Otherwise many creates at the same time could exceed
        # the limit, or creates of the same stream would use it up.
        new = sum(address not in self.making for address in addresses)
        if self.count + len(self.making) + new > self.limits.streams_max:
            return f"this node serves at most {self.limits.streams_max} streams"
        refusal = origin.usage.create(new, trio.current_time(), origin.peer)
        if refusal is not None:
            return refusal
        self.making.update(addresses)
        return Reservation(addresses, origin.usage, new)

    def give_back(self, reservation: Reservation, failed: int = 0) -> None:
        """Ends a reservation. failed: the number of its partitions that were not made."""
        for address in reservation.addresses:
            self.making[address] -= 1
            if not self.making[address]:
                del self.making[address]
        # A client repeats a create that failed. Otherwise a full disk would use up the limit of its identity.
        if failed:
            reservation.usage.give_back_created(min(failed, reservation.counted), trio.current_time())

    def note_changed(self, record: StreamRecord) -> None:
        """Has the worker of a read-only stream answer its readers, after its writer has changed the stream."""
        address = stream_address(record.name, record.partition)
        worker = self.node.find_worker(address)
        if isinstance(worker, ReadOnlyStream):
            worker.note_changed(record)
        else:
            self.open_stream(StoredStream(record, 0, None))

    def open_stream(self, stream: StoredStream) -> None:
        """Serves a stored stream, unless it is served already. Its worker starts when somebody needs the stream. Raises
        AddressInUse if another stream has its address."""
        name, partition = stream.record.name, stream.record.partition
        address = stream_address(name, partition)
        # Two names may have the same hash. Their messages must not mix, so the second stream is refused.
        if self.node.is_registered(address):
            worker = self.node.find_worker(address)
            if not isinstance(worker, ReadableStream) or worker.identity != (name, partition):
                raise AddressInUse(f"the address of stream {name!r} belongs to another stream; choose another name")
            return
        self.changes += 1
        # These workers start at once: a part of the node uses each stream that it writes, and a mirror asks its source.
        if self.is_read_only(name) or stream.mirror is not None:
            self.node.register([address], self._factory(stream))
            self._addresses[address] = None
        else:
            self.node.register_asleep(address, self)
            self._addresses[address] = stream

    def reopen_stream(self, stream: StoredStream) -> None:
        """Serves a stream anew, without its present worker, because something else wrote to it. Raises AddressInUse."""
        address = stream_address(stream.record.name, stream.record.partition)
        worker = self.node.find_worker(address)
        if isinstance(worker, StreamWorker) and worker.identity == (stream.record.name, stream.record.partition):
            self._close_stream(address)
        self.open_stream(stream)

    def hold(self, identity: tuple[str, int], reason: str | None) -> None:
        """Makes a stream store nothing for this reason, also if its worker is started again. None: ends the hold."""
        if reason is None:
            self.holds.pop(identity, None)
        else:
            self.holds[identity] = reason
        worker = self.node.find_worker(stream_address(*identity))
        if isinstance(worker, StreamWorker) and worker.identity == identity:
            worker.bounds.set_hold(reason)

    def addresses_to_tend(self) -> list[Address]:
        """Returns the partitions to `tend`: those whose worker runs, and those with messages that may become too old or
        too many."""
        default = self.default_retention
        return [
            address
            for address, stream in self._addresses.items()
            if stream is None
            or ((stream.retention or default) is not None and stream.record.first_index < stream.record.next_index)
        ]

    def tend(self, address: Address) -> None:
        """Deletes messages that exceed a partition's retention. Ends its worker if nobody has needed it for long."""
        stream = self._addresses.get(address)
        if stream is not None:
            self._tend_asleep(address, stream)
            return
        worker, mailbox = self.node.find_worker(address), self.node.find_mailbox(address)
        if isinstance(worker, StreamWorker) and mailbox is not None:
            rest = worker.find_rest(mailbox.statistics().received, trio.current_time())
            if rest is None:
                worker.admin.apply_retention(self.default_retention)
            else:
                self._put_to_sleep(address, rest)

    def _tend_asleep(self, address: Address, stream: StoredStream) -> None:
        """Starts the worker of a partition that sleeps, if it has something to delete."""
        retention = usable_retention(stream.retention or self.default_retention, self.clock)

        def found(operation: Do[int]) -> None:
            exceeds = operation.error is None and operation.result > stream.record.first_index
            if exceeds and self._addresses.get(address) is stream:
                worker = self.node.find_worker(address)
                assert isinstance(worker, StreamWorker), "only the workers of such streams sleep"
                worker.admin.apply_retention(self.default_retention)

        if retention is not None:
            find = partial(find_kept, stream_id=stream.record.stream_id, retention=retention, now_us=self.now_us())
            self.storage.submit_read(Do(find, found))

    def _put_to_sleep(self, address: Address, stream: StoredStream) -> None:
        # The dashboard forgets each stream in `closed`, but this stream goes on without a worker.
        was_closed = stream.record.name in self.counters.closed
        self.node.put_to_sleep(address, self)
        self._addresses[address] = stream
        if not was_closed:
            self.counters.closed.discard(stream.record.name)

    # The workers that sleep, see `ockam.actors.node.Sleepers`.

    def wake(self, address: Address) -> Callable[[], ReadableStream]:
        stream, self._addresses[address] = self._addresses[address], None
        assert stream is not None, "the worker sleeps"
        return self._factory(stream)

    def unstarted(self, address: Address) -> ReadableStream:
        stream = self._addresses[address]
        assert stream is not None, "the worker sleeps"
        return self._factory(stream)()

    def _factory(self, stream: StoredStream) -> Callable[[], ReadableStream]:
        """Returns the function that makes the worker of a stream-partition, at its first start and after each crash."""
        identity = stream.record.name, stream.record.partition
        known: StoredStream | None = stream

        def make() -> ReadableStream:
            # The stream is known, so the first start of the worker need not read it. After a crash the row is outdated,
            # and the worker reads the stream again.
            nonlocal known
            first, known = known, None
            if self.is_read_only(identity[0]):
                return ReadOnlyStream(*identity, first, self, self.kept)
            return StreamWorker(*identity, first, self, self.removed)

        return make

    def hand_over(self, address: Address) -> list[Message]:
        """Stops the worker of a stream that another node serves now. Returns the messages that it has not served."""
        worker = None if self.node.is_asleep(address) else self.node.find_worker(address)
        waiting = worker.hand_over() if isinstance(worker, ReadableStream) else []
        waiting += self.node.retire(address)
        self.changes += 1
        self._addresses.pop(address, None)
        return waiting

    def is_remote(self, address: Address) -> bool:
        return self.remote_streams is not None and self.remote_streams.is_remote(address)

    def removed(self, identity: tuple[str, int]) -> None:
        """Frees the address of a stream that has been deleted."""
        self._close_stream(stream_address(*identity))
        if self.role_changed is not None:
            self.role_changed(identity, None)

    def _close_stream(self, address: Address) -> None:
        self.changes += 1
        self.node.unregister(address)
        self._addresses.pop(address, None)
