"""A transport over Kafka, by the optional package confluent-kafka (the extra `kafka`). Each topic is a topic of Kafka.

The key of a message chooses its partition by CRC-32, as in librdkafka. The channel of a reorg is partition 0 of its
topic. The transport saves no offsets (the module `checkpoints` can) and joins no consumer group. The package's
calls block, so they run in worker threads, under trio or asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Self

from anyio import to_thread

from cardinal_streams.errors import TransportError
from cardinal_streams.message.messages import Record
from cardinal_streams.transports.partition_merge import PartitionMerge
from cardinal_streams.transports.transport import Delivery, is_reorg_topic, source_of

# The longest time that one call may wait: for metadata, for the confirms of sent records, for messages. `POLL_S` also
# limits how long a cancellation takes.
METADATA_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 60.0
POLL_S = 0.2
FETCH_WAIT_MS = 50
RECEIVE_MAX = 1_000
# A partition is paused when it has this number of messages that the consumer has not taken.
AHEAD_MAX = 4_000
EMPTY_GROUP = "cardinal-streams-no-group"

Partition = tuple[str, int]


class KafkaTransport:
    """A `Transport` over a Kafka cluster, and an async context manager. Raises `TransportError`.

    `config`: further settings of librdkafka, for producers and consumers. The cluster's own rules decide whether and
    how a topic is created when it is first used."""

    def __init__(self, servers: str, *, config: Mapping[str, Any] | None = None) -> None:
        try:
            self._kafka: Any = import_module("confluent_kafka")
        except ModuleNotFoundError as error:
            raise TransportError(
                "Kafka needs the package confluent-kafka: install the extra `kafka` (in a checkout: "
                "pip install '.[kafka]')"
            ) from error
        self._servers = servers
        # While a broker is away, librdkafka would log several lines a second on stderr. Our errors say the same.
        self._config = {"bootstrap.servers": servers, "log_level": 2, "error_cb": self._note, **(config or {})}
        self._last_error = ""
        # All replicas that are in sync must have a record, and records stay in order when they are sent again.
        settings = {"acks": "all", "enable.idempotence": True, "compression.type": "snappy", **self._config}
        self._producer = self._kafka.Producer(settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drops the Kafka client, which then ends. Each record was confirmed or has failed when `send` returned."""
        self._producer.purge()
        self._producer = None

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Sends the records. All replicas that are in sync have them when `send` returns."""
        await to_thread.run_sync(self._send, outgoing)

    async def created(self, topics: Collection[str]) -> dict[str, int]:
        return {}

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        return await to_thread.run_sync(self._ends, topics)

    @asynccontextmanager
    async def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = False
    ) -> AsyncIterator[KafkaReceiver]:
        """Reads all present partitions of these topics: endlessly, or up to their present ends (`stop_at_end`)."""
        receiver = await to_thread.run_sync(self._receiver, topics, position, stop_at_end)
        try:
            yield receiver
        finally:
            # `close` returns at once, since there is no group to leave and no offset to commit.
            receiver.close()

    def _note(self, error: Any) -> None:
        if error.code() != self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._last_error = f" ({error.str()})"

    def _send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        failed: list[Any] = []

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        sent = 0
        for topic, records in outgoing.items():
            where = {"partition": 0} if is_reorg_topic(topic) else {}
            for key, value in records:
                self._produce(topic, value, key, on_delivery=on_delivery, **where)
                sent += 1
        left = self._producer.flush(SEND_TIMEOUT_S)
        if failed or left:
            why = f"{failed[0]}" if failed else f"no answer for {left} in {SEND_TIMEOUT_S:g} s"
            raise TransportError(f"{len(failed) + left} of {sent} records were not confirmed: {why}{self._last_error}")
        self._last_error = ""

    def _produce(self, *arguments: Any, **options: Any) -> None:
        while True:
            try:
                self._producer.produce(*arguments, **options)
            except BufferError:
                # The queue is full; the next confirms make room.
                self._producer.poll(POLL_S)
            except self._kafka.KafkaException as error:
                raise TransportError(f"a record cannot be sent: {error}") from error
            else:
                return

    def _ends(self, topics: Collection[str]) -> dict[str, int]:
        consumer = self._consumer()
        try:
            return {
                source_of(*partition): self._bounds(consumer, partition)[1]
                for partition in self._partitions(consumer, topics)
            }
        finally:
            consumer.close()

    def _receiver(self, topics: Collection[str], position: Mapping[str, int], stop_at_end: bool) -> KafkaReceiver:
        consumer = self._consumer()
        try:
            starts: dict[Partition, int] = {}
            holes = 0
            for partition in self._partitions(consumer, topics):
                first, end = self._bounds(consumer, partition)
                wanted = position.get(source_of(*partition), 0)
                if wanted > end:
                    where = source_of(*partition)
                    raise TransportError(
                        f"the position of {where} is {wanted}, and it ends at {end}: the topic was made again"
                    )
                starts[partition] = max(first, wanted)
                holes += max(0, first - wanted)
            consumer.assign([self._kafka.TopicPartition(*each, offset) for each, offset in starts.items()])
        except BaseException:
            consumer.close()
            raise
        return KafkaReceiver(self._kafka, consumer, starts, holes, stop_at_end)

    def _consumer(self) -> Any:
        settings = {
            "group.id": EMPTY_GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # An empty fetch shows that a partition was read to its end. Until then, the messages of other partitions
            # must wait.
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "auto.offset.reset": "error",
            **self._config,
        }
        return self._kafka.Consumer(settings)

    def _partitions(self, consumer: Any, topics: Collection[str]) -> list[Partition]:
        """Returns all partitions of these topics. Asking creates a missing topic, if the cluster allows that."""
        found: list[Partition] = []
        for topic in topics:
            try:
                # If a producer asks for a topic, the cluster creates the topic; a consumer cannot cause that.
                self._producer.list_topics(topic, timeout=METADATA_TIMEOUT_S)
                metadata = consumer.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
            except self._kafka.KafkaException as error:
                # Callbacks run within `poll`.
                self._producer.poll(0)
                raise TransportError(
                    f"the cluster at {self._servers} does not tell of topic {topic!r}: "
                    f"{error.args[0].str()}{self._last_error}"
                ) from error
            if metadata.error is not None:
                raise TransportError(f"there is no topic {topic!r}: {metadata.error}")
            partitions = [0] if is_reorg_topic(topic) else sorted(metadata.partitions)
            found += [(topic, partition) for partition in partitions]
        return found

    def _bounds(self, consumer: Any, partition: Partition) -> tuple[int, int]:
        try:
            first, end = consumer.get_watermark_offsets(
                self._kafka.TopicPartition(*partition), timeout=METADATA_TIMEOUT_S
            )
        except self._kafka.KafkaException as error:
            raise TransportError(f"the cluster does not tell where {source_of(*partition)} ends: {error}") from error
        return first, end


class KafkaReceiver:
    """A `Receiver` over partitions of Kafka. It reads them at the same pace, and returns the oldest messages first.
    `holes` is the number of offsets that were deleted before the start of the subscription."""

    def __init__(
        self, kafka: Any, consumer: Any, starts: Mapping[Partition, int], holes: int, stop_at_end: bool
    ) -> None:
        self.holes = holes
        self.ends: dict[str, int] = {}
        self.created: dict[str, int] = {}
        self._kafka = kafka
        self._consumer = consumer
        self._stop_at_end = stop_at_end
        self._reading = set(starts)
        self._paused: set[Partition] = set()
        self._merge: PartitionMerge[Partition] = PartitionMerge(starts)
        self._closed = False

    async def receive_some(self) -> Sequence[Delivery]:
        while True:
            if deliveries := self._merge.take(RECEIVE_MAX):
                self._set_pace()
                return deliveries
            if not self._reading:
                return ()
            for message in await to_thread.run_sync(self._consume):
                self._put(message)
            self._set_pace()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _consume(self) -> list[Any]:
        """Returns all messages that have arrived, after at most `POLL_S` seconds for the first one."""
        # A single request for many messages would wait until that many have arrived.
        first = self._consumer.consume(1, POLL_S)
        return [*first, *self._consumer.consume(RECEIVE_MAX, 0)] if first else []

    def _put(self, message: Any) -> None:
        partition: Partition = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            delivery = Delivery(*partition, message.offset(), message.key() or b"", message.value() or b"")
            _, time_ms = message.timestamp()
            self._merge.put(partition, [delivery], [max(0, time_ms) * 1_000], at_end=False)
            self.ends[delivery.source] = max(delivery.offset + 1, self.ends.get(delivery.source, 0))
        elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
            self._merge.put(partition, [], [], at_end=True)
            if self._stop_at_end:
                self._reading.discard(partition)
        else:
            raise TransportError(f"{source_of(*partition)} cannot be read: {error}")

    def _set_pace(self) -> None:
        """Pauses the partitions that are far ahead of the others, and resumes the others."""
        ahead = {partition for partition in self._reading if self._merge.left(partition) >= AHEAD_MAX}
        for change, partitions in (
            (self._consumer.pause, ahead - self._paused),
            (self._consumer.resume, self._paused - ahead),
        ):
            if partitions:
                change([self._kafka.TopicPartition(*partition) for partition in partitions])
        self._paused = ahead
