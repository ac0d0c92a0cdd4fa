"""Parts of the demo: blocks (`run_blocks`), security (`run_guarded`), and the comparison at the end (`prove`).

Two publishers send the blocks of a generated chain. The first one dies in the middle of a block; the second one offers
the whole chain, of which the node skips what it has on disk. A subscriber must receive each block once, in order, with
the published items. Real blocks in files, if there are any, go to another node.

A node has mutual TLS and rules. `publisher` pushes text, and `reader` reads it. Three intruders try what they may not:
`reader` pushes, `eve` (whose certificate no rule names) reads, and a client without a certificate connects. Each must
be refused, and each refusal must be in the audit log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import msgspec
import trio

from block_node.blocks.files import find_files, read_items
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.client import OutgoingBlock
from block_node.client import connect as connect_blocks
from block_node.item_splitting import ItemBatch
from block_node.protocol import Piece
from ockam.identity.rules.rule_file import change_rules, make_rule
from stream_client import AccessDenied, Tls, TlsFailed, connect
from stream_node.care.certificates import create_authority, create_certificate
from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_node.node.identity.access import AUDIT_FILE
from stream_node.node.process import NodeProcess

BLOCKS = 40
ITEMS_A_BLOCK = 200
DIES_AT = BLOCKS // 2
PATIENCE_S = 60.0
REAL_BLOCKS = Path(__file__).resolve().parents[3] / "shared" / "data" / "hiero" / "SOLO_4N"
"""A folder with real blocks next to the repository. The demo skips them if this folder does not exist."""


class DemoBlocks(msgspec.Struct, frozen=True):
    """The result of `run_blocks`. real: the number of blocks from files. broken: a text for each broken promise."""

    published: int
    received: int
    real: int
    size_bytes: int
    seconds: float
    broken: tuple[str, ...]


class Died(Exception):
    """Raised to end the first publisher in the middle of a block."""


def run_blocks(directory: Path) -> DemoBlocks:
    """Publishes and receives blocks in this folder. Raises DemoFailed if the subscriber is not served in time."""
    keys = SigningKeys.generate()
    chain = list(ChainGenerator(keys, shape=BlockShape(item_count=ITEMS_A_BLOCK)).blocks(BLOCKS))
    real = [tuple(read_items(file)) for _, file in find_files(REAL_BLOCKS).blocks] if REAL_BLOCKS.is_dir() else []
    started_s = time.monotonic()
    with NodeProcess(directory / "blocks") as node:
        received = trio.run(_publish_and_follow, node.address, chain)
    broken = check([block.items for block in chain], received)
    if real:
        with NodeProcess(directory / "real-blocks") as node:
            broken += check(real, trio.run(_publish_real, node.address, real))
    size_bytes = sum(len(item) for items in [*(block.items for block in chain), *real] for item in items)
    seconds = time.monotonic() - started_s
    return DemoBlocks(len(chain), len(received), len(real), size_bytes, seconds, tuple(broken))


def check(published: Sequence[Sequence[bytes]], received: Sequence[tuple[int, Sequence[bytes]]]) -> list[str]:
    """Returns a text for each broken promise. Each block must be received once, in order, with its items."""
    broken = []
    numbers = [number for number, _ in received]
    if numbers != list(range(len(published))):
        broken.append(f"the subscriber got the blocks {numbers}, not each of 0 to {len(published) - 1} once")
    for number, items in received:
        if number < len(published) and list(items) != list(published[number]):
            broken.append(f"block {number}: what came is not what was published")
    return broken


async def _publish_and_follow(address: str, chain: Sequence[GeneratedBlock]) -> list[tuple[int, list[bytes]]]:
    received: list[tuple[int, list[bytes]]] = []

    async def follow() -> None:
        async with connect_blocks(address) as blocks_client, blocks_client.subscribe(0, len(chain) - 1) as blocks:
            async for block in blocks:
                received.append((block.number, block.items))

    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await _publish_and_die(address, chain)
                await _publish(address, [block.items for block in chain])
    except trio.TooSlowError:
        raise DemoFailed(f"the subscriber got {len(received)} of {len(chain)} blocks in {PATIENCE_S:g} s") from None
    return received


async def _publish_and_die(address: str, chain: Sequence[GeneratedBlock]) -> None:
    block = chain[DIES_AT]

    def half() -> Iterator[ItemBatch]:
        items = list(block.items[: len(block.items) // 2])
        yield ItemBatch(items, Piece.WHOLE, sum(map(len, items)))
        raise Died

    with suppress(Died):
        async with connect_blocks(address) as blocks_client, blocks_client.publisher() as publisher:
            for each in chain[:DIES_AT]:
                await publisher.send(OutgoingBlock.from_items(each.items))
            await publisher.flush()
            await publisher.send(OutgoingBlock(block.number, 0, half))
            await publisher.flush()


async def _publish(address: str, blocks: Sequence[Sequence[bytes]]) -> None:
    async with connect_blocks(address) as blocks_client, blocks_client.publisher() as publisher:
        for items in blocks:
            await publisher.send(OutgoingBlock.from_items(items))


async def _publish_real(address: str, blocks: Sequence[Sequence[bytes]]) -> list[tuple[int, list[bytes]]]:
    with trio.fail_after(PATIENCE_S):
        await _publish(address, blocks)
        async with connect_blocks(address) as blocks_client, blocks_client.subscribe(0, len(blocks) - 1) as received:
            return [(block.number, block.items) async for block in received]


STREAM = "secret.lines"
MESSAGES_MAX = 2_000
GUARDED_S_MAX = 30.0
RULES = (("publisher", ("create", "write")), ("reader", ("read", "index")))


class GuardedProof(msgspec.Struct, frozen=True):
    """The result of `run_guarded`. refused: the refused attempts, with reasons. audited: their lines in the audit log.
    broken: a text for each broken promise."""

    messages: int
    size_bytes: int
    read: int
    refused: tuple[str, ...]
    audited: int
    seconds: float
    broken: tuple[str, ...]


def run_guarded(directory: Path, lines: Sequence[bytes]) -> GuardedProof:
    """Pushes MESSAGES_MAX lines to a node with rules, and lets intruders try. Raises DemoFailed after too long."""
    lines = lines[:MESSAGES_MAX]
    started_s = time.monotonic()
    keys, rules, data_dir = directory / "keys", directory / "access.toml", directory / "guarded"
    # The keys, and rules for two of the three clients.
    ca = create_authority(keys)
    node_certificate = create_certificate(keys, "node", hosts=("localhost", "127.0.0.1"))
    certificates = {name: create_certificate(keys, name) for name in ("publisher", "reader", "eve")}
    clients = {
        name: Tls(ca=str(ca), certificate=str(each), key=str(each.with_suffix(".key")))
        for name, each in certificates.items()
    }
    for name, may in RULES:
        change_rules(rules, (), (make_rule(f"{name} of secrets", [f"certificate:{name}"], may, [], ["secret."]),))
    settings = {"tls_client_ca": ca, "access_rules": rules}
    settings |= {"tls_certificate": node_certificate, "tls_certificate_key": node_certificate.with_suffix(".key")}
    environment = {f"{ENVIRONMENT_PREFIX}{name.upper()}": str(value) for name, value in settings.items()}
    # A real node with these settings, used over TLS.
    with NodeProcess(data_dir, environment=environment) as node:
        try:
            read, refused, broken = trio.run(_push_read_and_intrude, node.address, clients, Tls(ca=str(ca)), lines)
        except trio.TooSlowError:
            raise DemoFailed(f"the node with TLS and rules did not answer in {GUARDED_S_MAX:g} s") from None
        node.stop()
    # Each refusal that a client saw must be in the audit log, too.
    audit = [json.loads(line) for line in (data_dir / AUDIT_FILE).read_text(encoding="utf-8").splitlines()]
    events = [line["event"] for line in audit if line["event"] in ("refused", "tls_refused")]
    if len(events) != len(refused):
        broken.append(f"{len(refused)} attempts were refused, and the audit log has {len(events)}")
    if read != list(lines):
        broken.append(f"the reader got {len(read)} messages, not the {len(lines)} that were pushed")
    seconds, size_bytes = time.monotonic() - started_s, sum(map(len, lines))
    return GuardedProof(len(lines), size_bytes, len(read), tuple(refused), len(events), seconds, tuple(broken))


async def _push_read_and_intrude(
    address: str, clients: dict[str, Tls], nobody: Tls, lines: Sequence[bytes]
) -> tuple[list[bytes], list[str], list[str]]:
    """Pushes, reads, and tries what is forbidden. Returns the read messages, the refusals, the broken promises."""
    read: list[bytes] = []
    refused: list[str] = []
    broken: list[str] = []
    with trio.fail_after(GUARDED_S_MAX):
        # The two clients with rights do their work.
        async with connect(address, tls=clients["publisher"]) as client:
            stream = await client.create(STREAM)
            async with stream.publisher() as publisher:
                for line in lines:
                    await publisher.push(line)
        async with connect(address, tls=clients["reader"]) as client:
            stream = await client.create(STREAM)
            while page := await stream.pull(len(read), 1_000):
                read += [message.data for message in page]
            # The reader tries an action for which it has no right.
            try:
                await stream.push(b"not allowed")
                broken.append("the reader pushed, with the right to read only")
            except AccessDenied as error:
                refused.append(f"reader: {error}")
        # A known certificate without rules, and then no certificate at all.
        for who, tls, refusal, promise in (
            ("eve", clients["eve"], AccessDenied, "a client that no rule names used the stream"),
            ("nobody", nobody, TlsFailed, "a client without a certificate used the node"),
        ):
            try:
                async with connect(address, tls=tls) as client:
                    await client.create(STREAM)
                broken.append(promise)
            except refusal as error:
                refused.append(f"{who}: {error}")
    return read, refused, broken


class DemoFailed(Exception):
    """A promise was broken, or a step of the demo did not end in time. The text says which."""


Confirmed: TypeAlias = Sequence[tuple[int, bytes]]
"""The index and the data of each confirmed push to one partition, in the order of the pushes."""


class DemoProof(msgspec.Struct, frozen=True):
    """The result of the comparison. broken: one text for each broken promise. stored_again: pushed again after a lost
    confirm. consumed_again: read twice by a consumer that was killed."""

    confirmed: int
    stored: int
    stored_again: int
    consumed: int
    consumed_again: int
    broken: tuple[str, ...]


def prove(
    confirmed: Mapping[int, Confirmed],
    stored: Mapping[int, Mapping[int, bytes]],
    consumed: Iterable[tuple[int, int, bytes]],
    under_way: int,
) -> DemoProof:
    """Compares the messages of each partition. stored: the data by partition and index. consumed: in the order of
    reading. under_way: the number of unconfirmed pushes at the kill; only these may be stored twice."""
    broken: list[str] = []
    for partition, pushes in confirmed.items():
        # Each confirmed push is stored at its index, the indexes rise without gaps, and nothing else is stored.
        here = stored[partition]
        for index, data in pushes:
            if here.get(index) != data:
                broken.append(f"partition {partition} index {index}: confirmed, but not stored as pushed")
        if any(later <= earlier for (earlier, _), (later, _) in pairwise(pushes)):
            broken.append(f"partition {partition}: confirmed out of order")
        indexes, pushed = {index for index, _ in pushes}, {data for _, data in pushes}
        if strangers := [index for index in here.keys() - indexes if here[index] not in pushed]:
            broken.append(f"partition {partition}: {len(strangers)} stored messages that nobody pushed")
        if here and sorted(here) != list(range(min(here), max(here) + 1)):
            broken.append(f"partition {partition}: holes between the stored indexes")
    # Each consumed message is equal to the stored one; a consumer that was killed may read some messages twice.
    read: dict[tuple[int, int], bytes] = {}
    total = 0
    for partition, index, data in consumed:
        total += 1
        if stored[partition].get(index) != data:
            broken.append(f"partition {partition} index {index}: what was consumed is not what is stored")
        read[partition, index] = data
    # Each stored message was consumed.
    places = ((partition, index) for partition, kept in stored.items() for index in kept)
    if missing := [each for each in places if each not in read]:
        broken.append(f"{len(missing)} stored messages were not consumed, the first at {missing[0]}")
    # Only pushes that were under way at the kill may be stored twice.
    count, kept = sum(map(len, confirmed.values())), sum(map(len, stored.values()))
    if kept - count > under_way:
        broken.append(f"{kept - count} messages are stored again, and {under_way} were on their way at the kill")
    return DemoProof(count, kept, kept - count, len(read), total - len(read), tuple(broken))
