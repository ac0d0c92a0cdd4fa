"""Summaries of a recording or of a list of blocks: counts, and the problems found. This module reads no files."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cardinal_streams.application import Application
from cardinal_streams.errors import MessageError, PayloadError
from cardinal_streams.machines.events import Completed, Evicted, Refused
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import decode
from cardinal_streams.payload import CompleteBatch, Payload
from cardinal_streams.prefixes import TRACK_ALL
from cardinal_streams.transports.transport import Delivery

# The largest number of problems that a summary lists. Further problems are only counted.
PROBLEMS_REPORTED_MAX = 20


class TopicSummary(msgspec.Struct):
    """The counts of one topic, or of one reorg channel (the topic of one reorg). `size_bytes`: all keys and values."""

    topic: str
    partitions: int = 0
    messages: int = 0
    size_bytes: int = 0


class Summary(msgspec.Struct):
    """The summary of a recording or of a list of blocks."""

    blocks: int = 0  # complete ones; `values` and `deletes` count their entries
    values: int = 0
    deletes: int = 0
    messages: int = 0
    duplicates: int = 0  # repeated messages of a recording, or repeated blocks of a list
    incomplete: int = 0  # blocks that lack messages
    first_number: int | None = None
    last_number: int | None = None
    problems: int = 0  # `told` has the texts of the first ones
    told: list[str] = []
    topics: list[TopicSummary] = []

    def problem(self, text: str) -> None:
        self.problems += 1
        if len(self.told) < PROBLEMS_REPORTED_MAX:
            self.told.append(text)


def summarise_deliveries(application: Application, deliveries: Iterable[Delivery]) -> Summary:
    """Summarises a recording: rebuilds all its blocks, including those of reorg channels."""
    summary = Summary()
    topics: dict[str, TopicSummary] = {}
    sources: set[str] = set()
    machine = Reassembler(TRACK_ALL, application.limits.reassembly)
    for delivery in deliveries:
        topic = topics.setdefault(delivery.topic, TopicSummary(delivery.topic))
        topic.messages += 1
        topic.size_bytes += len(delivery.key) + len(delivery.value)
        topic.partitions += delivery.source not in sources
        sources.add(delivery.source)
        where = f"{delivery.source} at {delivery.offset}"
        try:
            message = decode(delivery.key, delivery.value, application.limits.message)
        except MessageError as error:
            summary.problem(f"{where}: {error}")
            continue
        # A message can be valid alone and not fit its block.
        for event in machine.receive(message, delivery.source, delivery.offset):
            if isinstance(event, Completed):
                _count(summary, application, event.batch)
            elif isinstance(event, Refused):
                summary.problem(f"{where}: {event.what} does not fit block {event.hash.hex()} ({event.outcome.name})")
            elif isinstance(event, Evicted):
                summary.problem(f"{where}: block {event.hash.hex()} was given up: {event.missing}")
    # All messages were read, so these blocks stay incomplete.
    for hash_ in machine.incomplete():
        summary.problem(f"block {hash_.hex()} is incomplete: {machine.why_incomplete(hash_)}")
    if machine.put_off.position:
        summary.problem("more blocks are incomplete at once than fit into memory, and some of them are not looked at")
    statistics = machine.statistics()
    summary.messages = sum(topic.messages for topic in topics.values())
    summary.duplicates = statistics.duplicates + statistics.late
    summary.incomplete = statistics.incomplete
    summary.topics = sorted(topics.values(), key=lambda topic: topic.topic)
    return summary


def summarise_payloads(application: Application, payloads: Iterable[Payload]) -> Summary:
    """Summarises a list of blocks: makes the messages of each block, as the application's producer would."""
    summary = Summary()
    topics: dict[str, TopicSummary] = {}
    producer = application.producer()
    for payload in payloads:
        try:
            outgoing = producer.add_block(payload)
        except PayloadError as error:
            summary.problem(f"block {payload.number}: {error}")
            continue
        if not outgoing:
            summary.duplicates += 1
            continue
        for name, records in outgoing.items():
            topic = topics.setdefault(name, TopicSummary(name))
            topic.messages += len(records)
            topic.size_bytes += sum(len(key) + len(value) for key, value in records)
        batch = CompleteBatch(
            hash=payload.hash,
            number=payload.number,
            parent=payload.parent,
            weight=payload.weight,
            values=dict(payload.updates),
            deletes=frozenset(payload.deletes),
        )
        _count(summary, application, batch)
    summary.messages = sum(topic.messages for topic in topics.values())
    summary.topics = sorted(topics.values(), key=lambda topic: topic.topic)
    return summary


def _count(summary: Summary, application: Application, batch: CompleteBatch) -> None:
    summary.blocks += 1
    summary.values += len(batch.values)
    summary.deletes += len(batch.deletes)
    numbers = [number for number in (summary.first_number, summary.last_number) if number is not None]
    summary.first_number = min(*numbers, batch.number) if numbers else batch.number
    summary.last_number = max(*numbers, batch.number) if numbers else batch.number
    for problem in application.problems(batch):
        summary.problem(f"block {batch.number}: {problem}")
