"""A shell around `ChainConsumer` without I/O: logs in lists, an application that checks every update, and restarts."""

from __future__ import annotations

from collections.abc import Callable

from cardinal_streams.limits import DEFAULT_CONSUMER_LIMITS, ConsumerLimits
from cardinal_streams.machines.consumer_machine import NEW, ChainConsumer
from cardinal_streams.machines.events import ChainUpdate, Checkpoint, ConsumerEvent, ReadAgain, Revert
from cardinal_streams.message.messages import Record
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.produce.producer import Outgoing
from cardinal_streams.transports.transport import partition_of, reorg_topic, source_of


class Logs:
    """What was sent: each topic in partitions, each reorg's channel in one."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = partitions
        self.normal: dict[str, list[Record]] = {}
        self.channels: dict[bytes, list[Record]] = {}

    def send(self, outgoing: Outgoing) -> None:
        for topic, records in outgoing.items():
            for record in records:
                self.send_one(topic, record)

    def send_one(self, topic: str, record: Record) -> None:
        source = source_of(topic, partition_of(record.key, self.partitions))
        self.normal.setdefault(source, []).append(record)

    def send_on(self, ancestor: bytes, records: list[Record]) -> None:
        self.channels.setdefault(ancestor, []).extend(records)


class Application:
    """The chain as an application has it, from a block that it knows."""

    def __init__(self, first: bytes) -> None:
        self.hashes = [first]
        self.contents: dict[bytes, CompleteBatch] = {}
        self.reverts = 0

    def take(self, events: list[ConsumerEvent]) -> list[ChainUpdate | Revert]:
        """Applies the updates among these events, and returns them."""
        updates = [event for event in events if isinstance(event, ChainUpdate | Revert)]
        for event in updates:
            self.apply(event)
        return updates

    def apply(self, event: ChainUpdate | Revert) -> None:
        if isinstance(event, Revert):
            self.reverts += 1
            assert event.hash in self.hashes, "a revert to a block that is not on the application's chain"
            del self.hashes[self.hashes.index(event.hash) + 1 :]
            return
        keep = len(self.hashes) - len(event.removed)
        assert self.hashes[keep:] == [batch.hash for batch in event.removed]
        del self.hashes[keep:]
        for batch in event.added:
            assert batch.parent == self.hashes[-1]
            self.hashes.append(batch.hash)
            self.contents[batch.hash] = batch


class Shell:
    """Reads the logs as `feeds` says. `choose` picks one of several sources; the least recently read by default."""

    def __init__(
        self,
        logs: Logs,
        application: Application,
        reorg_threshold: int,
        checkpoint: Checkpoint = NEW,
        limits: ConsumerLimits = DEFAULT_CONSUMER_LIMITS,
    ) -> None:
        self.limits = limits
        self.logs = logs
        self.application = application
        self.reorg_threshold = reorg_threshold
        self.events: list[ConsumerEvent] = []
        self.reads = 0
        self.restart(checkpoint)

    def restart(self, checkpoint: Checkpoint) -> None:
        """As after a crash: a new machine, and the channels of open reorgs are read from their beginning."""
        self.consumer = ChainConsumer(reorg_threshold=self.reorg_threshold, checkpoint=checkpoint, limits=self.limits)
        self.position = dict(checkpoint.position)
        self.channel_position = {reorg.hash: reorg.offset for reorg in checkpoint.open_reorgs}
        for source, offset in checkpoint.history.items():
            ancestor = next(each for each in self.logs.channels if source.startswith(reorg_topic("default", each)))
            end = self.channel_position.get(ancestor)
            for at, (key, value) in enumerate(self.logs.channels[ancestor][offset:end], offset):
                self._handle(self.consumer.receive_history(key, value, source, at))

    def readable(self) -> list[str | bytes]:
        feeds = self.consumer.feeds
        found: list[str | bytes] = []
        if feeds.normal:
            found += [s for s, records in self.logs.normal.items() if self.position.get(s, 0) < len(records)]
        for ancestor in feeds.channels:
            if self.channel_position.get(ancestor, 0) < len(self.logs.channels.get(ancestor, [])):
                found.append(ancestor)
        return found

    def read_one(self, feed: str | bytes) -> None:
        self.reads += 1
        if isinstance(feed, str):
            offset = self.position.get(feed, 0)
            self.position[feed] = offset + 1
            key, value = self.logs.normal[feed][offset]
            self._handle(self.consumer.receive(key, value, feed, offset))
        else:
            offset = self.channel_position.get(feed, 0)
            self.channel_position[feed] = offset + 1
            key, value = self.logs.channels[feed][offset]
            source = source_of(reorg_topic("default", feed), 0)
            self._handle(self.consumer.receive_reorg(feed, key, value, source, offset))
        self.consumer.check()

    def run(self, choose: Callable[[list[str | bytes]], str | bytes] | None = None, reads_max: int = 1 << 30) -> None:
        """Reads until there is nothing more to read, or so many deliveries."""
        for _ in range(reads_max):
            found = self.readable()
            if not found:
                self._handle(self.consumer.at_end())
                found = self.readable()
            if not found:
                return
            self.read_one(found[self.reads % len(found)] if choose is None else choose(found))

    def run_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            assert self.readable(), "there is nothing more to read"
            self.run(reads_max=1)

    def _handle(self, events: list[ConsumerEvent]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, ReadAgain) and event.ancestor is None:
                self.position = dict(event.position)
            elif isinstance(event, ReadAgain) and event.ancestor is not None:
                self.channel_position[event.ancestor] = min(event.position.values())
        for event in self.application.take(events):
            self.consumer.done(event)
