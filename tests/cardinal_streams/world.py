"""Chains as messages, and a small world with a reorg beyond the threshold."""

from __future__ import annotations

from cardinal_streams.machines.events import Checkpoint, Start
from cardinal_streams.payload import Payload
from cardinal_streams.produce.producer import Producer, ReorgChannel
from tests.cardinal_streams.helpers import TOPICS, hash_of, payload
from tests.cardinal_streams.shell import Application, Logs, Shell

GENESIS_HASH = hash_of("g")
GENESIS = Checkpoint(start=Start(GENESIS_HASH, 0, 0))


def chain(prefix: str, parent: str, first: int, count: int, bonus: int = 0) -> list[Payload]:
    """Blocks with a sub batch and a key each; weights are ten times the numbers, and a bonus."""
    found = []
    for number in range(first, first + count):
        name = f"{prefix}{number}"
        found.append(
            payload(
                name,
                parent,
                number,
                10 * number + bonus,
                updates={f"a/{name}": name.encode(), f"x/{name}": b"x"},
                sub_batches={"b/s": hash_of(f"id{number}")},
            )
        )
        parent = name
    return found


def send(logs: Logs, producer: Producer, blocks: list[Payload]) -> None:
    for block in blocks:
        logs.send(producer.add_block(block))
        for id_ in block.sub_batches.values():
            logs.send(producer.send_sub_batch(block.hash, id_, (), {"b/s/1": block.hash}))


def send_reorg(logs: Logs, producer: Producer, ancestor: Payload, blocks: list[Payload], removed_weight: int) -> None:
    channel = ReorgChannel(producer, ancestor.hash, ancestor.number, removed_weight)
    begin = channel.begin()
    logs.send_on(ancestor.hash, begin[channel.topic])
    logs.send({"default": begin["default"]})
    for block in blocks:
        logs.send_on(ancestor.hash, channel.add_block(block))
        for id_ in block.sub_batches.values():
            logs.send_on(ancestor.hash, channel.send_sub_batch(block.hash, id_, (), {"b/s/1": block.hash}))
    logs.send_on(ancestor.hash, channel.complete())


def producer_of() -> Producer:
    return Producer("default", TOPICS)


class World:
    """A chain of ten blocks; then a reorg back to the second, four blocks beyond the threshold of four."""

    def __init__(self, producers: int = 1, after: int = 3) -> None:
        self.logs = Logs()
        self.old = chain("o", "g", 1, 10)
        self.new = chain("n", "o2", 3, 9, bonus=5)
        self.after = chain("n", "n11", 12, after, bonus=5)
        everyone = [producer_of() for _ in range(producers)]
        for each in everyone:
            send(self.logs, each, self.old)
        for each in everyone:
            send_reorg(self.logs, each, self.old[1], self.new, 100)
        for each in everyone:
            send(self.logs, each, self.after)
        self.expected = [GENESIS_HASH, *(block.hash for block in (*self.old[:2], *self.new, *self.after))]

    def shell(self) -> Shell:
        return Shell(self.logs, Application(GENESIS_HASH), 4, GENESIS)
