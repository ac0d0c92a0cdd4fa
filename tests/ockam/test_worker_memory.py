"""Goal: a node has room for a hundred thousand workers that sleep. Method: all bytes that Python has allocated are
counted before and after some thousands of workers have each handled a message, of one kind and of the other."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import trio
import trio.testing

from ockam import AsyncWorker, Message, Node, Worker, local

WORKERS = 5_000


class Called(Worker):
    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


class Awaiting(AsyncWorker):
    async def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


@pytest.mark.parametrize(("kind", "bytes_max"), [(Called, 2 * 1024), (Awaiting, 8 * 1024)])
async def test_a_worker_that_sleeps_is_small(kind: type[Worker], bytes_max: int) -> None:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        routes = [(local(f"worker-{number}"),) for number in range(WORKERS)]
        gc.collect()
        tracemalloc.start()
        try:
            for route in routes:
                node.register(route, kind)
                assert (await node.ask(route, b"x")).payload == b"x"
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held / WORKERS <= bytes_max
        nursery.cancel_scope.cancel()
