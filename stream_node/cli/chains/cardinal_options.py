"""The options that all commands of `stream-node cardinal` share: the application, and where its messages are."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stream_node.cli.client import run_to_signal, with_client
from stream_node.cli.options import NodeOptions
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from cardinal_streams.application import Application
    from cardinal_streams.machines.chain_events import Start
    from cardinal_streams.transports.stream_transport import OnHole
    from cardinal_streams.transports.transport import Transport
    from stream_client import StreamClient

ApplicationOption = Annotated[
    str,
    "NAME",
    "The application's prefixes and topics: plain, evm, evm-ID (ID of the chain), simulated, or a TOML file.",
]
PARTITIONS = 4


class TransportOptions(NamedTuple):
    node: NodeOptions = NodeOptions()
    recording: Annotated[
        Path | None, "FILE", "A recording (a file) in place of a node. Commands that write make it."
    ] = None
    kafka: Annotated[str | None, "HOST:PORT", "Use a Kafka cluster in place of a node; needs the extra `kafka`."] = None
    partitions: Annotated[int, typer.Option(min=1), "The number of partitions of each topic that is made."] = PARTITIONS


ANY_TRANSPORT = TransportOptions()
EVM = re.compile(r"evm(?:-([1-9][0-9]{0,18}))?")
START = re.compile(r"([0-9]{1,20}):(?:0x)?([0-9a-fA-F]{64}):([0-9]{1,78})")
BLOCK = re.compile(r"([0-9]{1,20})|(?:0x)?([0-9a-fA-F]{64})")
GZIP_MAGIC = b"\x1f\x8b"
NODE_VARIABLE = "STREAM_NODE_ADDRESS"
"""The variable with the address of a node. The options --recording and --kafka take precedence."""


def find_application(name: str) -> Application:
    from cardinal_streams.application import Application, parse_application
    from cardinal_streams.evm import evm
    from cardinal_streams.produce.simulation_machine import SIMULATED

    if name == "plain":
        return Application("plain", "blocks")
    if name == SIMULATED.name:
        return SIMULATED
    match = EVM.fullmatch(name)
    if match is not None:
        return evm(int(match[1] or 1))
    path = Path(name)
    if path.suffix != ".toml":
        raise UsageError(f"{name!r} is no application: plain, evm, evm-ID, simulated, or a file that ends with .toml")
    return parse_application(path.stem, path.read_text(encoding="utf-8"))


def parse_start(text: str) -> Start:
    """Parses a block as NUMBER:HASH:WEIGHT, where HASH is 64 hexadecimal digits. Raises UsageError."""
    from cardinal_streams.machines.chain_events import Start

    match = START.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not NUMBER:HASH:WEIGHT, such as 7:0x{'0' * 64}:7")
    return Start(bytes.fromhex(match[2]), int(match[1]), int(match[3]))


def parse_block(text: str) -> int | bytes:
    match = BLOCK.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is neither the number nor the hash of a block, such as 7 or 0x{'0' * 64}")
    return bytes.fromhex(match[2]) if match[1] is None else int(match[1])


def decompressed(data: bytes) -> bytes:
    if data[: len(GZIP_MAGIC)] != GZIP_MAGIC:
        return data
    import gzip
    import zlib

    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"a file of gzip is cut short or damaged: {error}") from error


def with_transport(
    run: Callable[[Transport, StreamClient | None], Awaitable[None]],
    options: TransportOptions,
    on_hole: OnHole | None = None,
) -> None:
    """Runs an async function with a recording, a Kafka cluster, or the chosen node and its client. on_hole: called
    for messages of a node that were deleted before they were read. Raises UsageError for more than one of the three."""
    from cardinal_streams.transports.stream_transport import StreamTransport

    (node, context, via), recording, kafka, partitions = options
    if recording is None and kafka is None:

        async def over_node(client: StreamClient) -> None:
            await run(StreamTransport(client, partitions=partitions, on_hole=on_hole), client)

        with_client(over_node, options.node)
        return

    from cardinal_streams.transports.file_transport import FileTransport
    from cardinal_streams.transports.kafka_transport import KafkaTransport

    if node not in (None, os.environ.get(NODE_VARIABLE)) or context is not None or via or (recording and kafka):
        raise UsageError("--recording and --kafka are in place of a node and of each other; give only one of them")
    if recording is not None:
        transport = FileTransport(recording, partitions)
        try:
            run_to_signal(run, transport, None)
        finally:
            transport.close()
        return

    assert kafka is not None

    async def over_kafka(servers: str) -> None:
        async with KafkaTransport(servers) as transport:
            await run(transport, None)

    run_to_signal(over_kafka, kafka)
