"""Counts the messages of `stream-node push` by their results: stored, not stored or unknown. It sends nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import typer

from stream_node.cli.output import counted
from stream_node.cli.printable import printable

if TYPE_CHECKING:
    from stream_client import Push


class PushCounts:
    """The counts of pushed messages. started_s: on the monotonic clock. on_failure: called after each failed push."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.sent = self.stored = 0
        self.partitions: dict[int, PartitionCounts] = {}
        self.on_failure: Callable[[], None] = lambda: None

    def watch(self, push: Push) -> None:
        self.sent += 1
        number, stored = self.sent, self.partitions.setdefault(push.partition, PartitionCounts())
        stored.sent += 1
        stored.unknown.add(number)
        push.when_done(lambda: self._count(push, number))

    def _count(self, push: Push, number: int) -> None:
        stored = self.partitions[push.partition]
        if push.error is None or not push.error.in_doubt:
            stored.unknown.discard(number)
        if push.error is None:
            self.stored += 1
            stored.count += 1
            # The node does not remember the index of an old duplicate.
            if push.index < 0:
                return
            stored.first_index = push.index if stored.first_index is None else min(stored.first_index, push.index)
            stored.last_index = push.index if stored.last_index is None else max(stored.last_index, push.index)
        else:
            if not push.error.in_doubt:
                stored.not_stored.append(number)
            self.on_failure()


class PartitionCounts:
    """The results of the pushes to one partition. count: how many messages are stored.
    not_stored, unknown: the positions of the other messages in the whole input, counted from 1. A message is unknown
    while it has no answer, and after an error that does not show whether it was stored."""

    def __init__(self) -> None:
        self.sent = self.count = 0
        self.not_stored: list[int] = []
        self.unknown: set[int] = set()
        self.first_index: int | None = None
        self.last_index: int | None = None


def print_unconfirmed(counts: PushCounts, stream: str) -> None:
    """Prints the messages that are not stored or whose result is unknown, for people; programs use the JSON report."""
    for partition in sorted(counts.partitions):
        stored = counts.partitions[partition]
        for numbers, state in ((stored.not_stored, "not stored"), (stored.unknown, "unknown, may be stored or not")):
            if numbers:
                ranges = ranges_of(numbers)
                named = ", ".join(f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges)
                count = counted(len(numbers), "message")
                typer.echo(printable(f"{count} for {stream}/{partition} {state}: number {named}"))


def ranges_of(numbers: Collection[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges
