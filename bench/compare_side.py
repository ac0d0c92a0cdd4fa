"""One side of a comparison: measures one checkout, one piece of work at a time, as `bench/compare.py` asks for it.

    PYTHONPATH=CHECKOUT CHECKOUT/.venv/bin/python -P bench/compare_side.py CHECKOUT TIMES

TIMES is how often a piece of work with pushes or pulls is done for one measurement. The program reads the name of a
piece of work from each line of standard input, does the work, and answers with one line of JSON: a `Measured`. The
nodes, the clients and the measuring functions are those of the checkout, so that two checkouts with different layouts
can be compared. This file imports only the standard library until it knows the checkout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

SIZE_BYTES = 100
PULLED_MESSAGES = 50_000
PULLED_STREAM = "compare"
ITEMS_A_BLOCK = 100
BLOCKS = 300
CARDINAL_BLOCKS = 1_000


class Measured(NamedTuple):
    """The times of one piece of work: on the clock, and of the processor (user and system) in node and client."""

    messages: int
    seconds: float
    node_cpu_s: float
    client_cpu_s: float


class Side:
    """The checkout that is measured. A context manager: its nodes are gone when the block ends."""

    def __init__(self, times: int = 1) -> None:
        """times: how often pushes and pulls are done for one measurement."""
        self._times = times
        self._kept_node: Any = None

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._kept_node is not None:
            self._kept_node.__exit__()

    def push(self, *, messages: int, window: int) -> Measured:
        """Measures durable pushes to the kept node. window: the number of unconfirmed pushes."""
        work = partial(_part("measure").push_rate, messages=messages, size_bytes=SIZE_BYTES, window=window)
        return self._measure_kept(messages, work)

    def pull(self, *, messages: int, page_messages: int) -> Measured:
        """Stored messages read from the kept node."""
        work = partial(_pull, messages=messages, page_messages=page_messages)
        return self._measure_kept(messages, work)

    def _measure_kept(self, messages: int, work: Callable[..., Any]) -> Measured:
        """Measures work at the kept node that is done `times` times. messages: the messages of one time."""
        address = self._node.address

        def all_work() -> None:
            for _ in range(self._times):
                _run(work, address)

        return _measure(self._node, messages * self._times, all_work)

    def publish_blocks(self) -> Measured:
        """Blocks sent to a fresh node until it has verified and stored them."""
        with _part("bench_node").BenchNode() as node:
            publish = _part("block_publishing").publish_all
            return _measure(node, BLOCKS * ITEMS_A_BLOCK, lambda: _run(publish, node.address, self._blocks))

    def catch_up_with_blocks(self) -> Measured:
        """Stored blocks read by a subscriber."""
        with _part("bench_node").BenchNode() as node:
            _run(_part("block_publishing").publish_all, node.address, self._blocks)
            catch_up = _part("block")._catch_up
            return _measure(node, BLOCKS * ITEMS_A_BLOCK, lambda: _run(catch_up, node.address, self._blocks))

    def cardinal_in_process(self) -> Measured:
        """Cardinal messages made, put together and ordered, without a node."""
        cardinal = _part("cardinal")

        def work() -> None:
            _, records = cardinal.produced(self._cardinal_blocks)
            cardinal.ordered(cardinal.delivered(records), CARDINAL_BLOCKS)

        return _measure(None, self._cardinal_messages, work)

    def cardinal_through_node(self) -> Measured:
        """Cardinal messages sent to a fresh node, received from it and ordered."""
        cardinal = _part("cardinal")
        with _part("bench_node").BenchNode() as node:

            def work() -> None:
                for action in (cardinal._send, cardinal._receive):
                    _run(cardinal._timed, action, node.address, self._cardinal_blocks)

            return _measure(node, self._cardinal_messages, work)

    @property
    def _node(self) -> Any:
        """The node of all pushes and pulls. It serves all rounds: a fresh node would be measured while it warms up."""
        if self._kept_node is None:
            self._kept_node = _part("bench_node").BenchNode().__enter__()
            fill = partial(_push_to, PULLED_STREAM, messages=PULLED_MESSAGES)
            _run(fill, self._kept_node.address)
        return self._kept_node

    @cached_property
    def _blocks(self) -> list[Any]:
        block = _part("block")
        shape = block.BlockShape(item_count=ITEMS_A_BLOCK, item_bytes=SIZE_BYTES)
        return list(block.ChainGenerator(block.SigningKeys.generate(), shape=shape).blocks(BLOCKS))

    @cached_property
    def _cardinal_blocks(self) -> list[Any]:
        return list(_part("cardinal").chain(CARDINAL_BLOCKS))

    @property
    def _cardinal_messages(self) -> int:
        return CARDINAL_BLOCKS * int(_part("cardinal").MESSAGES_A_BLOCK)


WORKS: dict[str, Callable[[Side], Measured]] = {
    "push, window 1": lambda side: side.push(messages=500, window=1),
    "push, window 100": lambda side: side.push(messages=20_000, window=100),
    "push, window 1,000": lambda side: side.push(messages=50_000, window=1_000),
    "push, window 10,000": lambda side: side.push(messages=100_000, window=10_000),
    "pull, 10 a page": lambda side: side.pull(messages=10_000, page_messages=10),
    "pull, 1,000 a page": lambda side: side.pull(messages=PULLED_MESSAGES, page_messages=1_000),
    "blocks published, 100 items each": Side.publish_blocks,
    "blocks caught up with": Side.catch_up_with_blocks,
    "Cardinal, in one process": Side.cardinal_in_process,
    "Cardinal, through a node": Side.cardinal_through_node,
}
"""The pieces of work by name. A message is a push, a pulled message, a block item or a Cardinal message."""


async def _push_to(stream: str, address: str, *, messages: int) -> None:
    measure = _part("measure")
    async with measure.connect(address) as client:
        target = await client.create(stream)
        await measure.push_in_turn([target], messages=messages, size_bytes=SIZE_BYTES, window=1_000)


async def _pull(address: str, *, messages: int, page_messages: int) -> None:
    async with _part("measure").connect(address) as client:
        source = await client.create(PULLED_STREAM)
        index = 0
        while index < messages:
            page = await source.pull(index, page_messages)
            index = page[-1].index + 1


def _part(name: str) -> Any:
    """Returns a module of the checkout's own bench, whose packages differ from version to version."""
    for place in ("bench", "bench.works", "bench.servers", "stream_node.bench"):
        try:
            return import_module(f"{place}.{name}")
        except ModuleNotFoundError:
            pass
    sys.exit(f"the bench of the checkout has no module {name}")


def _run(work: Callable[..., Any], *arguments: Any) -> None:
    import_module("trio").run(work, *arguments)


def _measure(node: Any, messages: int, work: Callable[[], None]) -> Measured:
    """Does the work once. node: a running node, or None."""
    node_cpu_s = _cpu_seconds(node)
    client_cpu_s, started_s = time.process_time(), time.perf_counter()
    work()
    seconds, client_cpu_s = time.perf_counter() - started_s, time.process_time() - client_cpu_s
    return Measured(messages, seconds, _cpu_seconds(node) - node_cpu_s, client_cpu_s)


def _cpu_seconds(node: Any) -> float:
    """Processor time of a node so far. The scheduler counts nanoseconds for each thread (Linux); where it does not, the
    figure has steps of 10 ms."""
    if node is None:
        return 0.0
    try:
        threads = list(Path(f"/proc/{node.pid}/task").iterdir())
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    except OSError:
        return float(node.cpu_seconds())


@contextmanager
def _answers() -> Iterator[Callable[[Measured], None]]:
    """Yields a function that prints to standard output. All other output of this process goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def answer(measured: Measured) -> None:
            out.write(json.dumps(measured) + "\n")
            out.flush()

        yield answer


def main() -> None:
    checkout = Path(sys.argv[1]).resolve()
    found = Path(str(import_module("stream_node").__file__)).resolve()
    if not found.is_relative_to(checkout):
        sys.exit(f"{checkout}: Python imports {found.parent}, which is not this checkout")
    with _answers() as answer, Side(int(sys.argv[2])) as side:
        for line in sys.stdin:
            answer(WORKS[line.strip()](side))


if __name__ == "__main__":
    main()
