"""Measures what single bytes cost a block node over gRPC: received items, messages that are sent, large messages.

Receiving is measured without its consequences: a publisher sends items while none of its blocks is open, so the node
receives them, cuts them out of their messages, and drops them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from bench.plan import Plan
from bench.report import OURS, Sample
from bench.servers.bench_node import BenchNode
from bench.works.block import memory_watched
from bench.works.grpc import PUBLISH, Answer, asking, grpc_node, publish, read_blocks, wire_of
from block_node.blocks.generator import BlockShape, ChainGenerator, SigningKeys
from block_node.grpc.http2.message_reader import IDENTITY, ZSTD, compress
from block_node.grpc.http2.status import GrpcStatus
from block_node.grpc.messages import write_message
from ockam.identity.tls import Tls
from stream_node.care.certificates import create_authority, create_certificate
from stream_node.node.config import ENVIRONMENT_PREFIX

RECEIVED_ITEMS, RECEIVED_BYTES = 1_000, (100, 1_000)
"""The items of one message, and the sizes of an item."""
ITEM_RANDOM_PART: Final = 7
"""One in this many bytes of an item is random, so that zstd compresses the items about as well as a real block
(facts/grpc_peers.md §3.3)."""
LARGE_ITEM_BYTES: Final = 1_000_000
LARGE_ITEMS, SENT_ITEMS = 100, 8
REST_S, REST_CPU_S, REST_S_MAX = 0.5, 0.02, 10.0
"""A node is at rest if it uses at most REST_CPU_S processor seconds in REST_S seconds. REST_S_MAX: the longest wait."""
COMPRESSED, ENCRYPTED, UNREAD = "stream-node, zstd", "stream-node, TLS", "stream-node, read for the first time"
RECEIVED, SENT, LARGE = (
    "grpc: items received and dropped",
    "grpc: sent to a subscriber with frames of 16 KiB",
    "grpc: one message of 100 MB",
)


class Way(NamedTuple):
    """How messages come to the node. tls: how the client encrypts them; None: not at all."""

    encoding: str = IDENTITY
    tls: Tls | None = None


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of this work. For messages that are sent, and for a large message, the memory is the most by which
    the server grows."""
    yield from _received(plan)
    keys = SigningKeys.generate(key_bits=2048)
    yield from _sent(keys, plan)
    yield from _large(keys, plan)


def _received(plan: Plan) -> Iterator[Sample]:
    with _key_folder() as keys:
        settings = {"tls_certificate": "node.pem", "tls_certificate_key": "node.key", "tls_client_ca": "ca.pem"}
        environment = {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(keys / file) for name, file in settings.items()}
        tls = Tls(*(str(keys / file) for file in ("ca.pem", "client.pem", "client.key")))
        ways: dict[str, tuple[Mapping[str, str], Way]] = {
            OURS: ({}, Way()),
            COMPRESSED: ({}, Way(ZSTD)),
            ENCRYPTED: (environment, Way(tls=tls)),
        }
        for round_ in range(plan.rounds):
            for system in tuple(ways)[:: -1 if round_ % 2 else 1]:
                more, way = ways[system]
                with grpc_node(more, way.tls) as node:
                    for item_bytes in RECEIVED_BYTES:
                        count = max(1, plan.volume_bytes // (item_bytes * RECEIVED_ITEMS))
                        act = partial(_drop, node, way, item_bytes, count)
                        yield _measured(node, RECEIVED, system, round_, item_bytes, count * RECEIVED_ITEMS, act)


def _sent(keys: SigningKeys, plan: Plan) -> Iterator[Sample]:
    """Blocks of 8 MB that a subscriber reads in small frames."""
    shape = BlockShape(item_count=SENT_ITEMS + 4, item_bytes=LARGE_ITEM_BYTES)
    count = max(1, plan.volume_bytes // (SENT_ITEMS * LARGE_ITEM_BYTES))
    blocks = [wire_of(block) for block in ChainGenerator(keys, shape=shape).blocks(count)]
    with grpc_node() as node:
        trio.run(publish, node, blocks)
        # The node still copies its log into the database, which is no cost of sending.
        _wait_rest(node)
        for round_ in range(-1, plan.rounds):
            system, act = OURS if round_ >= 0 else UNREAD, partial(read_blocks, node, count)
            yield _measured(node, SENT, system, max(0, round_), LARGE_ITEM_BYTES, count * SENT_ITEMS, act)


def _large(keys: SigningKeys, plan: Plan) -> Iterator[Sample]:
    """One block of 100 MB that comes as one message."""
    generator = ChainGenerator(keys)
    small = wire_of(generator.next_block())
    generator.shape = BlockShape(item_count=LARGE_ITEMS + 4, item_bytes=LARGE_ITEM_BYTES)
    large = wire_of(generator.next_block())
    for round_ in range(plan.rounds):
        with grpc_node() as node:
            # The memory of modules that the node loads for its first block must not count.
            trio.run(publish, node, [small])
            yield _measured(node, LARGE, OURS, round_, LARGE_ITEM_BYTES, 1, partial(publish, node, [large], first=1))


def _measured(
    node: BenchNode,
    work: str,
    system: str,
    round_: int,
    size_bytes: int,
    messages: int,
    action: Callable[[], Awaitable[object]],
) -> Sample:
    async def watched() -> int:
        async with memory_watched(node) as highest:
            await action()
        return highest[0]

    before_bytes, cpu_s, started_s = node.memory_bytes(), node.cpu_seconds(), time.perf_counter()
    highest_bytes = trio.run(watched)
    return Sample(
        work=work,
        system=system,
        round=round_,
        size_bytes=size_bytes,
        messages=messages,
        seconds=time.perf_counter() - started_s,
        server_cpu_s=node.cpu_seconds() - cpu_s,
        server_memory_bytes=highest_bytes - before_bytes,
    )


def _wait_rest(node: BenchNode) -> None:
    until_s = time.monotonic() + REST_S_MAX
    cpu_s = float("-inf")
    while node.cpu_seconds() - cpu_s > REST_CPU_S and time.monotonic() < until_s:
        cpu_s = node.cpu_seconds()
        time.sleep(REST_S)


@contextmanager
def _key_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        keys = Path(folder).absolute() / "keys"
        create_authority(keys)
        create_certificate(keys, "node", hosts=("127.0.0.1",))
        create_certificate(keys, "client")
        yield keys


async def _drop(node: BenchNode, way: Way, item_bytes: int, count: int) -> None:
    """Sends one message of items again and again, until the node has taken all."""
    random_bytes = item_bytes // ITEM_RANDOM_PART
    items = [b"\x12" + bytes(item_bytes - 1 - random_bytes) + os.urandom(random_bytes) for _ in range(RECEIVED_ITEMS)]
    message = write_message("PublishStreamRequest", {"block_items": {"block_items": items}})
    is_packed = way.encoding != IDENTITY
    if is_packed:
        message = compress(message, way.encoding)
    answer = Answer()
    async with asking(node, tls=way.tls) as connection:
        call = connection.ask(PUBLISH, answer, metadata=((b"grpc-encoding", way.encoding.encode()),))
        for _ in range(count):
            await answer.send(call, message, compressed=is_packed)
        call.end()
        await answer.wait(lambda: answer.status is GrpcStatus.OK)
