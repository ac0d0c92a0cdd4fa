"""Vectors, and short names for hashes, blocks and messages, for the tests of `cardinal_streams`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cardinal_streams.machines.events import Completed, ReassemblyEvent
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Record, decode
from cardinal_streams.payload import CompleteBatch, Payload
from cardinal_streams.produce.producer import Outgoing, Producer

VECTORS = Path(__file__).parent.parent / "vectors" / "cardinal"
TOPICS = {"a/": "ta", "b/": "tb", "q/": "tq"}


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


def hash_of(name: str | int) -> bytes:
    """32 bytes that end with the name."""
    raw = name.to_bytes(8, "big") if isinstance(name, int) else name.encode()
    return raw.rjust(32, b"\0")


def block(name: str, parent: str, number: int, weight: int, size_bytes: int = 0) -> CompleteBatch:
    """A complete block for tests of the chain."""
    return CompleteBatch(
        hash=hash_of(name),
        number=number,
        parent=hash_of(parent),
        weight=weight,
        values={},
        deletes=frozenset(),
        size_bytes=size_bytes,
    )


def names(batches: Iterable[CompleteBatch]) -> list[str]:
    return [batch.hash.lstrip(b"\0").decode() for batch in batches]


def payload(name: str, parent: str, number: int, weight: int | None = None, **contents: Any) -> Payload:
    return Payload(
        hash=hash_of(name),
        number=number,
        parent=hash_of(parent),
        weight=number if weight is None else weight,
        **contents,
    )


def records_of(outgoing: Outgoing) -> list[Record]:
    return [record for records in outgoing.values() for record in records]


def message_records(
    whole: Payload, sub_batches: Mapping[bytes, tuple[Iterable[str], Mapping[str, bytes]]] | None = None
) -> list[Record]:
    """All messages of a block, sub batches included, as a fresh producer makes them."""
    producer = Producer("default", TOPICS)
    records = records_of(producer.add_block(whole))
    for id_, (deletes, updates) in (sub_batches or {}).items():
        records += records_of(producer.send_sub_batch(whole.hash, id_, tuple(deletes), updates))
    return records


def receive_all(reassembler: Reassembler, records: Iterable[Record], source: str = "t:0") -> list[ReassemblyEvent]:
    """Delivers the records at offsets 0, 1, …; checks the invariant after each."""
    events: list[ReassemblyEvent] = []
    for offset, (key, value) in enumerate(records):
        events.extend(reassembler.receive(decode(key, value), source, offset))
        reassembler.check()
    return events


def completed(events: Iterable[ReassemblyEvent]) -> list[CompleteBatch]:
    return [event.batch for event in events if isinstance(event, Completed)]
