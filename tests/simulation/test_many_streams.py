"""Goal: pushes to very many streams keep every promise: each confirm names the index of its message, no index
is given twice, the pushes of a stream are stored in their order, and no stream gets another's messages.

Method: one program pushes to all streams of a node in an order that the seed shuffles, as plain pushes and as batches;
the disk is full now and then, and the node dies between two commits, again and again. The log is read at the end and
compared with the confirms, message by message.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import trio

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from stream_node.node.config import Config
from stream_node.node.services import Services, stored_streams
from stream_service.extensions import BATCHED, PUSH_BATCH, PUSH_FAILED
from stream_service.names import stream_address
from stream_service.protocol import PUSH, Status
from stream_service.push_codec import encode_batch, encode_push
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.simulation.disk import FaultyRunner
from tests.support.virtual_time import run_seeded

STREAMS, LIVES, ROUNDS = 200, 3, 6
MANY_STREAMS = 10_000


class Collector(Worker):
    """Takes the answers to pushes. confirmed: by stream and request id, the index. refused: how many pushes were."""

    def __init__(self, streams: dict[bytes, int]) -> None:
        self._streams = streams
        self.confirmed: dict[tuple[int, int], int] = {}
        self.refused = 0

    def receive(self, run: Sequence[Message]) -> None:
        for message in run:
            stream = self._streams[message.return_route[0].value]
            if PUSH_BATCH.is_in(message.payload):
                answer = PUSH_BATCH.decode_response(message.payload)
                stored, request_id, count, index = not answer.failure, answer.request_id, answer.count, answer.index
            elif PUSH.is_in(message.payload):
                confirm = PUSH.decode_response(message.payload)
                stored, request_id, count, index = confirm.status is Status.OK, confirm.request_id, 1, confirm.index
            else:
                PUSH_FAILED.decode_response(message.payload)
                stored, request_id, count, index = False, 0, 1, 0
            for offset in range(count if stored else 0):
                at = stream, request_id + offset
                assert self.confirmed.setdefault(at, index + offset) == index + offset, "confirmed at two indexes"
            self.refused += 0 if stored else count


async def run_lives(rng: random.Random, directory: Path, count: int, lives: int, rounds: int) -> Collector:
    routes = [(stream_address(f"many.{number}", 0),) for number in range(count)]
    collector = Collector({route[0].value: number for number, route in enumerate(routes)})
    pushed: dict[int, list[bytes]] = defaultdict(list)
    back = (local(BATCHED + b"collector"),)
    database = Database.open(directory)
    with closing(database.session()) as session:
        session.begin()
        for number in range(count):
            session.log.ensure_stream(f"many.{number}", 0, 1)
        session.commit()
    database.close()
    for _ in range(lives):
        database = Database.open(directory)
        async with trio.open_nursery() as nursery:
            node = Node(nursery)

            async def delay() -> None:
                await trio.sleep(round(rng.random() * 0.2, 3))

            full_share = rng.choice((0.0, 0.2))
            runner = FaultyRunner(database, nursery, delay=delay, batches=node, rng=rng, full_share=full_share)
            services = Services(node, runner, Config(retention_interval_s=0.3))
            services.start(stored_streams(database))
            node.register([back[0]], lambda: collector)
            for _ in range(rounds):
                run: list[Message] = []
                for number in rng.sample(range(count), rng.randint(count // 3, count)):
                    # The text names the stream and the place, so that a message in the wrong place is seen.
                    texts = [b"%d/%d" % (number, len(pushed[number]) + k) for k in range(rng.choice((1, 1, 3)))]
                    request_id = len(pushed[number])
                    pushed[number] += texts
                    payload = encode_push(request_id, texts[0]) if len(texts) == 1 else encode_batch(request_id, texts)
                    run.append(Message(routes[number], back, payload))
                # A connection delivers what one read has brought as one batch.
                while run:
                    size = rng.randint(1, count)
                    node.send_run(run[:size])
                    del run[:size]
                    await trio.sleep(rng.choice((0.0, 0.05, 0.5)))
            runner.crash()
            nursery.cancel_scope.cancel()
        database.close()
    _compare(directory, count, pushed, collector)
    return collector


def _compare(directory: Path, count: int, pushed: Mapping[int, list[bytes]], collector: Collector) -> None:
    """Compares what is stored with what was confirmed, message by message."""
    stored: dict[int, list[bytes]] = {}
    database = Database.open(directory)
    with closing(database.read_session()) as session:
        assert not verify(session).problems
        for number in range(count):
            stream = session.log.find_stream(f"many.{number}", 0)
            assert stream is not None
            records = session.log.read(stream.stream_id, 0, 10**6, 10**9)
            assert [record[0] for record in records] == list(range(stream.next_index))
            stored[number] = [record[1] for record in records]
    database.close()
    for number, texts in stored.items():
        places = [int(text.removeprefix(b"%d/" % number)) for text in texts]
        assert places == sorted(set(places)), "the pushes of a stream are stored once, in their order"
    for (number, request_id), index in collector.confirmed.items():
        assert stored[number][index] == pushed[number][request_id]


def check(seed: int, ground: Path, count: int, lives: int, rounds: int) -> None:
    rng = random.Random(seed)
    collector = run_seeded(seed, lambda: run_lives(rng, ground / str(seed), count, lives, rounds))
    # Most pushes are confirmed, and some are refused or lost with a node: otherwise the run would show little.
    assert len(collector.confirmed) > count * lives * rounds / 4
    assert len({stream for stream, _ in collector.confirmed}) > 0.9 * count


def test_pushes_to_many_streams_keep_every_promise(ground: Path) -> None:
    for seed in range(2):
        check(seed, ground, STREAMS, LIVES, ROUNDS)


@pytest.mark.soak
def test_pushes_to_ten_thousand_streams_keep_every_promise(ground: Path) -> None:
    for seed in range(3):
        check(seed, ground, MANY_STREAMS, LIVES, ROUNDS)
