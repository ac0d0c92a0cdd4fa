"""Messages of blocks and of Cardinal Streams, made by hand, for tests of the pipeline."""

from __future__ import annotations

from random import Random
from typing import Any

from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock, SigningKeys
from block_node.persist.mark import BlockMark, headers_of, key_of
from cardinal_streams.message.messages import (
    Batch,
    BatchDeleteMsg,
    BatchMsg,
    Record,
    SubBatchHeader,
    SubBatchMsg,
    encode,
)
from stream_service.extensions import decode_extras
from tests.support.blocks import join_block

Headers = list[dict[str, Any]]
"""The headers of a message, as an exported table has them."""

CUT_BYTES = 700


def block_messages(cuts: tuple[int, ...] = (CUT_BYTES,)) -> list[tuple[int, bytes | None, Headers, bytes]]:
    """Blocks 0, 1 and 3 of a chain, each cut into several messages; once for each size in `cuts`.

    The node stored block 0 under another root that it may have; the first message of block 1 says which one it is.
    """
    wrong = bytes(48)
    first: GeneratedBlock | None = None
    messages: list[tuple[int, bytes | None, Headers, bytes]] = []
    for block in ChainGenerator(SigningKeys.generate(), shape=BlockShape(item_count=12)).blocks(4):
        if block.number == 2:
            continue
        data = join_block(block.items)
        pieces = [[data[at : at + cut] for at in range(0, len(data), cut)] for cut in cuts]
        for parts, number, part in ((each, number, part) for each in pieces for number, part in enumerate(each)):
            root = wrong if block.number == 0 and parts is pieces[0] else block.root
            mark = BlockMark(block.number, number, len(parts), len(block.items), len(data), root)
            others = (block.root,) if block.number == 0 else ()
            before = first.root if first is not None and (block.number, number) == (1, 0) else b""
            beside = decode_extras(headers_of(mark, others, before)).headers
            headers = [{"key": header.name, "value": header.value} for header in beside]
            messages.append((len(messages), key_of(block.number), headers, part))
        first = first or block
    return messages


def name_of(text: str) -> bytes:
    return text.encode().ljust(32, b"\0")


def cardinal_records() -> list[Record]:
    """a - b - c, and x beside b, which c made obsolete; b is announced by two producers."""

    def batch(name: str, parent: str, number: int, **updates: Any) -> Record:
        return encode(Batch(name_of(name), number, name_of(parent), number * 10, **updates))

    b = batch("b", "a", 2, counts={"state/": 2}, sub_batches={"logs/": name_of("s")})
    return [
        batch("a", "0", 1, values={"k": b"1"}, deletes=frozenset({"gone"})),
        batch("x", "a", 2),
        b,
        b,
        encode(BatchMsg(name_of("b"), "state/one", b"v")),
        encode(BatchDeleteMsg(name_of("b"), "state/two")),
        encode(SubBatchHeader(name_of("b"), name_of("s"), 1)),
        encode(SubBatchMsg(name_of("b"), name_of("s"), 0, ("logs/old",), {"logs/new": b"l"})),
        batch("c", "b", 3),
    ]


def odd_chain(randomness: Random) -> list[Record]:
    """The blocks of a chain as no honest producer makes it, some of them twice, in almost any order.

    Weights have nothing to do with numbers, so a short branch wins over a long one. Some parents never come, and a few
    numbers do not grow.
    """
    chain = [Batch(name_of("odd 0"), 1, bytes(32), 1)]
    blocks, stuck = list(chain), randomness.choice((0.0, 0.0, 0.03))
    for at in range(1, 60):
        forks = randomness.random() < 0.2
        parent = chain[-min(len(chain), 6)] if forks else chain[-1]
        number = parent.number + (0 if randomness.random() < stuck else randomness.choice((1, 1, 1, 2)))
        weight = parent.weight + (30 if forks else randomness.choice((0, 1, 2, 3)))
        if randomness.random() < 0.1:
            blocks.append(Batch(name_of(f"odd {at}"), chain[-1].number, name_of(f"lost {at}"), 0))
        else:
            chain.append(Batch(name_of(f"odd {at}"), number, parent.hash, weight, values={f"k{at}": b"v"}))
            blocks.append(chain[-1])
    blocks += randomness.sample(blocks, 4)
    late = randomness.choice((1, 1, 2, 8))
    places = {at: at + randomness.randrange(late) for at in range(len(blocks))}
    return [encode(blocks[at]) for at in sorted(places, key=places.__getitem__)]
