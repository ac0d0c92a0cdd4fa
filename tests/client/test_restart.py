"""Goal: acknowledged is stored, not acknowledged is reported, nothing is skipped, and with numbers nothing is stored
twice. Method: a node that is killed and started again in a loop, under publishers and consumers of all three shells.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from stream_client import Push, blocking
from stream_node.node.process import NodeProcess
from tests.client.shells import SHELLS, ShellName, Tools, run_in

PATIENCE_S = 120.0
END = b"the end"
PAUSE_EVERY = 20
"""A publisher stands still for a moment behind so many messages, so that the loop is about restarts and not speed."""


class Story:
    """What one publisher pushed, and what one consumer of the same stream saw, over all its lives."""

    def __init__(self, shell: ShellName, idempotent: bool) -> None:
        self.shell = shell
        self.idempotent = idempotent
        self.stream = f"{shell}, {'each once' if idempotent else 'plain'}"
        self.pushes: list[Push] = []
        self.lives: list[list[tuple[int, bytes]]] = []

    async def publish(self, tools: Tools, stop: threading.Event) -> None:
        async with tools.connect() as client:
            stream = await client.create(self.stream)
            async with stream.publisher(window=100, idempotent=self.idempotent) as publisher:
                while not stop.is_set():
                    data = b"%d of %s" % (len(self.pushes), self.stream.encode())
                    self.pushes.append(await publisher.push(data))
                    if len(self.pushes) % PAUSE_EVERY == 0:
                        await publisher.flush()
                self.pushes.append(await publisher.push(END))

    async def consume(self, tools: Tools, rng: random.Random) -> None:
        """Read to the end, in several lives that end without a word."""
        async with tools.connect() as client:
            stream = await client.create(self.stream)
            positions = tools.saved_indexes(client, "reader")
            deadline_s = time.monotonic() + PATIENCE_S
            while not (self.lives and self.lives[-1][-1:] and self.lives[-1][-1][1] == END):
                assert time.monotonic() < deadline_s, f"{self.stream}: the end was not reached"
                life: list[tuple[int, bytes]] = []
                self.lives.append(life)
                messages_max = rng.choice((10, 300, 10_000))
                consumer = stream.consumer(positions, page_messages=50, save_messages=20)
                async for message in consumer:
                    life.append((message.index, message.data))
                    if len(life) == messages_max or message.data == END:
                        break

    def check(self, stored: dict[int, bytes]) -> None:
        assert self.pushes
        assert all(push.done for push in self.pushes), "not acknowledged is reported"
        indexes = [push.index for push in self.pushes if push.error is None]
        assert len(indexes) == len(self.pushes), [push.error for push in self.pushes if push.error][:1]
        assert all(stored[push.index] == push.data for push in self.pushes), "acknowledged is stored"
        assert all(earlier < later for earlier, later in pairwise(indexes)), "in the order of the pushes"
        assert sorted(stored) == list(range(len(stored)))
        pushed = [push.data for push in self.pushes]
        if self.idempotent:
            assert [stored[index] for index in sorted(stored)] == pushed, "each is stored once"
        assert set(stored.values()) == set(pushed)
        self.check_lives(stored)

    def check_lives(self, stored: dict[int, bytes]) -> None:
        lives = [life for life in self.lives if life]
        for life in lives:
            assert all(stored[index] == data for index, data in life)
            assert [index for index, _ in life] == list(range(life[0][0], life[0][0] + len(life))), "in order"
        assert lives[0][0][0] == 0
        for earlier, later in pairwise(lives):
            assert later[0][0] <= earlier[-1][0] + 1, "nothing is skipped"


def in_threads(jobs: list[Callable[[], None]], meanwhile: Callable[[], None]) -> None:
    """Run the jobs side by side, and `meanwhile` here; raises what any of them raises."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures: list[Future[None]] = [pool.submit(job) for job in jobs]
        meanwhile()
        for future in futures:
            future.result(PATIENCE_S)


def restart_in_a_loop(data_dir: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    stories = [Story(shell, idempotent) for shell in SHELLS for idempotent in (False, True)]
    stop = threading.Event()
    with NodeProcess(data_dir) as node:
        address = node.address

        def publish(story: Story) -> Callable[[], None]:
            return lambda: run_in(story.shell, lambda tools: story.publish(tools, stop), address)

        def consume(story: Story) -> Callable[[], None]:
            choices = random.Random(rng.random())
            return lambda: run_in(story.shell, lambda tools: story.consume(tools, choices), address)

        def kill_and_start() -> None:
            try:
                for _ in range(kills):
                    time.sleep(rng.uniform(0.1, 0.6))
                    node.kill()
                    node.start()
            finally:
                stop.set()

        in_threads([make(story) for story in stories for make in (publish, consume)], kill_and_start)
        with blocking.connect(address) as client:
            for story in stories:
                messages = client.create(story.stream).follow(stop_at_end=True)
                story.check({message.index: message.data for message in messages})


@pytest.mark.slow
def test_a_node_killed_and_started_in_a_loop_loses_nothing(tmp_path: Path) -> None:
    restart_in_a_loop(tmp_path / "data", kills=3, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_the_same_for_minutes(tmp_path: Path, seed: int) -> None:
    restart_in_a_loop(tmp_path / "data", kills=60, seed=seed)
