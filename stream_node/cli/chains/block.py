"""The commands `stream-node block publish|subscribe|get|status|generate`: send, receive, fetch and generate blocks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.client import check_contact, run_to_signal
from stream_node.cli.options import GIVEN, NO_CHANNEL, RUNS, ContextOption, NodeOption, NodeOptions, ViaOption, reaching
from stream_node.cli.output import columns, counted, say
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from block_node.grpc.client.client import GrpcBlockClient
if TYPE_CHECKING or RUNS:
    from block_node.blocks.address_book import AddressBook
    from block_node.blocks.files import find_files, write_block
    from block_node.blocks.items import item_prefix, split_block
    from block_node.client import BlockClient, OutgoingBlock, PublishSettings, connect
    from block_node.client.publish_sessions import ANSWER_S_MAX
    from ockam.actors.address import split_host_port
    from ockam.files.durable_files import make_folder

SUFFIXES = (".blk", ".blk.gz", ".blk.zstd")
PASSED_OVER_SHOWN = 5


class BlockNodeOptions(NamedTuple):
    node: NodeOption = None
    also: Annotated[
        list[str] | None, "HOST:PORT", "Another node, to continue with if the first one fails. May be repeated."
    ] = None
    context: ContextOption = None
    via: ViaOption = None


ANY_BLOCK_NODE = BlockNodeOptions()
PeerOption = Annotated[
    str | None, typer.Option("--grpc"), "HOST:PORT", "Speak gRPC to the block node at this address, instead of --node."
]
SuffixOption = Annotated[str, f"The suffix of the files: {', '.join(SUFFIXES)}."]


def publish(
    files: Annotated[list[Path], typer.Argument(), "Block files, or folders of them, in any order."],
    nodes: BlockNodeOptions = ANY_BLOCK_NODE,
    give_up: Annotated[float, typer.Option(min=0.1), "Fail after this many seconds without an acknowledgement."] = 30.0,
    grpc: PeerOption = None,
) -> None:
    """Publish blocks from .blk, .blk.gz and .blk.zstd files, and wait until the node has verified and stored all
    of them.

    If the node already has a block, the root hashes are compared. A different block with the same number is an error.
    Over gRPC nothing is compared, because the node names no root hashes; the blocks must follow each other, and each
    answer is taken as a consensus node takes it.
    In a folder, only files with the name of a block are published: a number of up to 36 digits and one of the suffixes.

    Example: stream-node block publish chain/*.blk.zstd
    """
    paths, passed_over = _block_files(files)
    # A block given twice is sent twice, because the publisher compares the two copies.
    blocks = sorted(map(OutgoingBlock.from_file, paths), key=lambda block: block.number)

    async def run(client: BlockClient) -> None:
        started_s = time.monotonic()
        async with client.publisher(PublishSettings(give_up_s=give_up)) as publisher:
            for block in blocks:
                await publisher.send(block)
            await publisher.flush()
        tell_durable(publisher.acknowledged, publisher.compared, started_s)

    async def run_grpc(client: GrpcBlockClient) -> None:
        started_s = time.monotonic()
        tell_durable((await client.publish(blocks, give_up_s=give_up)).acknowledged, 0, started_s)

    def tell_durable(acknowledged: int | None, compared: int, started_s: float) -> None:
        seconds = time.monotonic() - started_s
        first, last = blocks[0].number, blocks[-1].number
        count = len({block.number for block in blocks})
        report: dict[str, Any] = {"published": count, "first_block": first, "last_block": last}
        report |= {"acknowledged": acknowledged, "compared": compared}
        report |= {"seconds": round(seconds, 6), "passed_over": list(map(str, passed_over))}
        what = f"block {first} is" if first == last else f"{counted(count, 'block')}, {first} to {last}, are"
        before = f"; {compared:,} of them had come before, with the same root" if compared else ""
        lines = [f"{what} durable ({seconds:.2f} s){before}"]
        say(report, [*lines, _passed_over(passed_over)] if passed_over else lines)

    _with_blocks(run, nodes) if grpc is None else _with_peer(run_grpc, grpc, nodes)


def subscribe(
    start: Annotated[
        int | None,
        typer.Option("--from", min=0),
        "The first block. Without it, the subscription begins with the next new block.",
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=0), "The last block. Without it, the subscription has no end."
    ] = None,
    out: Annotated[Path | None, "A folder; each block is written to a file in it."] = None,
    suffix: SuffixOption = ".blk.zstd",
    compress: Annotated[bool, "Ask the node to compress the blocks, for a slow line."] = False,
    nodes: BlockNodeOptions = ANY_BLOCK_NODE,
    grpc: PeerOption = None,
) -> None:
    """Print each verified block as it arrives: first the stored blocks, then new ones, without a gap.

    Over gRPC the node names no root hashes, and compresses as its operator has set.

    Example: stream-node block subscribe --from 0 --out blocks
    """
    _check_suffix(suffix)
    if out is not None:
        make_folder(out)

    async def run(client: BlockClient) -> None:
        async with client.subscribe(start, end, wait=end is None, compress=compress) as blocks:
            async for block in blocks:
                take_block(block.number, block.items, block.root.hex())

    async def run_grpc(client: GrpcBlockClient) -> None:
        async for number, items in client.subscribe(start, end):
            take_block(number, items, None)

    def take_block(number: int, items: Sequence[bytes], root: str | None) -> None:
        file = None if out is None else out / f"{number}{suffix}"
        if file is not None:
            write_block(file, items)
        size_bytes = sum(len(item_prefix(len(item))) + len(item) for item in items)
        report: dict[str, Any] = {"block": number, "items": len(items), "bytes": size_bytes, "root": root}
        text = f"block {number}: {counted(len(items), 'item')}, {size_bytes:,} bytes"
        say(report | {"file": None if file is None else str(file)}, text)

    _with_blocks(run, nodes) if grpc is None else _with_peer(run_grpc, grpc, nodes)


def get(
    number: Annotated[
        int | None, typer.Argument(min=0), "The number of the block. Without it, the latest block."
    ] = None,
    out: Annotated[Path | None, "A file for the block. Its suffix chooses the compression."] = None,
    nodes: BlockNodeOptions = ANY_BLOCK_NODE,
) -> None:
    """Fetch one block, and print its size and its root hash.

    Example: stream-node block get 7 --out 7.blk.gz
    """

    async def run(client: BlockClient) -> None:
        found, root, data = await client.get(number)
        items = list(split_block(data))
        if out is not None:
            write_block(out, items)
        report: dict[str, Any] = {"block": found, "items": len(items), "bytes": len(data), "root": root.hex()}
        text = f"block {found}: {counted(len(items), 'item')}, {len(data):,} bytes, root {root.hex()[:16]}…"
        say(report | {"file": None if out is None else str(out)}, text)

    if out is not None:
        _check_suffix(out.name)
    _with_blocks(run, nodes)


def status(nodes: BlockNodeOptions = ANY_BLOCK_NODE) -> None:
    """Print which blocks the node has, and which block it expects next.

    Example: stream-node block status --json
    """

    async def run(client: BlockClient) -> None:
        found = await client.status(detail=True)
        detail = found.detail
        ranges = ((), ()) if detail is None else (detail.available, detail.stored)
        available, stored = ([[each.first_block, each.last_block] for each in part] for part in ranges)
        keys = None if detail is None else detail.address_book
        book = None if keys is None else AddressBook.deserialize(keys).node_ids
        report: dict[str, Any] = {"first_available": found.first_available, "last_available": found.last_available}
        report |= {"next_expected": found.next_expected, "available": available, "stored": stored}
        report["version"] = None if detail is None else detail.version
        report["plugins"] = {} if detail is None else {each.plugin: each.version for each in detail.plugins}
        report["address_book"] = book
        rows = [
            ("available", _shown(available)),
            ("stored", _shown(stored)),
            ("next expected", str(found.next_expected)),
            ("address book", "none" if book is None else f"keys of nodes {', '.join(map(str, book))}"),
        ]
        say(report, columns(rows))

    _with_blocks(run, nodes)


def generate(
    folder: Annotated[Path, typer.Argument(), "The folder for the files. It is made if it does not exist."],
    blocks: Annotated[int, typer.Option(min=1), "The number of blocks, from block 0 on."] = 10,
    items: Annotated[int, typer.Option(min=4), "The number of items in each block."] = 100,
    item_bytes: Annotated[int, typer.Option(min=0), "The size of each item."] = 100,
    suffix: SuffixOption = ".blk.zstd",
    seed: Annotated[int, "The same seed makes the same chain."] = 0,
) -> None:
    """Generate a chain of block files for testing a node.

    The signing keys of the chain and their address book are written to FOLDER/keys.

    Example: stream-node block generate chain --blocks 100
    """
    # The other commands do without OpenSSL.
    from block_node.blocks.generator import ADDRESS_BOOK_FILE, BlockShape, ChainGenerator, SigningKeys

    _check_suffix(suffix)
    make_folder(folder)
    keys_folder = folder / "keys"
    if not (keys_folder / ADDRESS_BOOK_FILE).exists():
        SigningKeys.generate().save(keys_folder)
    chain = ChainGenerator(
        SigningKeys.load(keys_folder), shape=BlockShape(item_count=items, item_bytes=item_bytes), seed=seed
    )
    size_bytes = sum(write_block(folder / f"{number}{suffix}", chain.next_items()) for number in range(blocks))
    report: dict[str, Any] = {"folder": str(folder), "blocks": blocks, "first_block": 0, "last_block": blocks - 1}
    report |= {"items": blocks * items, "bytes": size_bytes, "address_book": str(keys_folder / ADDRESS_BOOK_FILE)}
    say(report, f"{counted(blocks, 'block')} of {counted(items, 'item')} in {folder}")


def _with_blocks(run: Callable[[BlockClient], Awaitable[None]], nodes: BlockNodeOptions) -> None:
    target = NodeOptions(nodes.node, nodes.context, nodes.via).target()
    addresses = [target.address, *(nodes.also or ())]
    for address in addresses:
        split_host_port(address)

    async def main() -> None:
        # With several nodes, the client itself finds out which of them answer.
        if len(addresses) == 1:
            await check_contact(target)
        async with connect(addresses, answer_s_max=GIVEN.get().timeout or ANSWER_S_MAX, **reaching(target)) as client:
            await run(client)

    run_to_signal(main)


def _with_peer(run: Callable[[GrpcBlockClient], Awaitable[None]], address: str, nodes: BlockNodeOptions) -> None:
    from block_node.grpc.client.client import connect_grpc

    given = GIVEN.get()
    if nodes.also or nodes.context or nodes.via or given.channel != NO_CHANNEL:
        raise UsageError("--grpc names the node and the way to it: leave out --also, --context, --via and --peer")

    async def main() -> None:
        async with connect_grpc(address, tls=given.tls, token=given.token) as client:
            await run(client)

    run_to_signal(main)


def _block_files(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the block files of the given files and folders, and the other files of these folders."""
    files: list[Path] = []
    passed_over: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = find_files(path)
            files += [file for _, file in found.blocks]
            passed_over += found.passed_over
        else:
            files.append(path)
    if not files:
        text = f"there are no block files (NUMBER and {', '.join(SUFFIXES)}) in {', '.join(map(str, paths))}"
        raise UsageError(f"{text}; {_passed_over(passed_over)}" if passed_over else text)
    return files, passed_over


def _passed_over(paths: list[Path]) -> str:
    more = f" and {len(paths) - PASSED_OVER_SHOWN:,} more" if len(paths) > PASSED_OVER_SHOWN else ""
    names = ", ".join(map(str, paths[:PASSED_OVER_SHOWN]))
    return f"passed over {counted(len(paths), 'file')} not named as a block: {names}{more}"


def _check_suffix(name: str) -> None:
    if not name.endswith(SUFFIXES):
        raise UsageError(f"{name!r} does not end as block files do: {', '.join(SUFFIXES)}")


def _shown(ranges: list[list[int]]) -> str:
    return ", ".join(f"{first} to {last}" for first, last in ranges) or "no block"
