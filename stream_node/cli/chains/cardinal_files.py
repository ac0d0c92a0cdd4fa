"""The commands `stream-node cardinal inspect` (checks files) and `simulate` (sends a test chain in disorder), and the
options of all commands of `cardinal`: the application, and where its messages are."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.client import run_to_signal, with_client
from stream_node.cli.options import RUNS, NodeOptions
from stream_node.cli.output import columns, counted, say
from stream_node.cli.values import UsageError

if TYPE_CHECKING or RUNS:
    import gzip
    import zlib

    import msgspec

    from cardinal_streams.application import Application, parse_application
    from cardinal_streams.evm import evm
    from cardinal_streams.inspection import summarise_deliveries, summarise_payloads
    from cardinal_streams.machines.events import Start
    from cardinal_streams.payload import format_payloads, parse_payloads
    from cardinal_streams.produce.producer import Outgoing
    from cardinal_streams.produce.simulation_machine import SIMULATED, SentRecord, SimulationOptions
    from cardinal_streams.produce.simulation_machine import simulate as make
    from cardinal_streams.transports.file_transport import MAGIC, FileTransport, replay
    from cardinal_streams.transports.kafka_transport import KafkaTransport
    from cardinal_streams.transports.stream_transport import OnHole, StreamTransport
    from cardinal_streams.transports.transport import Transport
    from stream_client import StreamClient

ApplicationOption = Annotated[
    str,
    "NAME",
    "The application's prefixes and topics: plain, evm, evm-ID (ID of the chain), simulated, or a TOML file.",
]


class TransportOptions(NamedTuple):
    node: NodeOptions = NodeOptions()
    recording: Annotated[
        Path | None, "FILE", "A recording (a file) in place of a node. Commands that write make it."
    ] = None
    kafka: Annotated[str | None, "HOST:PORT", "Use a Kafka cluster in place of a node; needs the extra `kafka`."] = None
    partitions: Annotated[int, typer.Option(min=1), "The number of partitions of each topic that is made."] = 4


ANY_TRANSPORT = TransportOptions()
EVM = re.compile(r"evm(?:-([1-9][0-9]{0,18}))?")
START = re.compile(r"([0-9]{1,20}):(?:0x)?([0-9a-fA-F]{64}):([0-9]{1,78})")
BLOCK = re.compile(r"([0-9]{1,20})|(?:0x)?([0-9a-fA-F]{64})")
NODE_VARIABLE = "STREAM_NODE_ADDRESS"
"""The variable with the address of a node. The options --recording and --kafka take precedence."""


def find_application(name: str) -> Application:
    if name == "plain":
        return Application("plain", "blocks")
    if name == SIMULATED.name:
        return SIMULATED
    if match := EVM.fullmatch(name):
        return evm(int(match[1] or 1))
    path = Path(name)
    if path.suffix != ".toml":
        raise UsageError(f"{name!r} is no application: plain, evm, evm-ID, simulated, or a file that ends with .toml")
    return parse_application(path.stem, path.read_text(encoding="utf-8"))


def parse_start(text: str) -> Start:
    """Parses a block as NUMBER:HASH:WEIGHT, where HASH is 64 hexadecimal digits. Raises UsageError."""
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
    if not data.startswith(b"\x1f\x8b"):
        return data
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
    (node, context, via), recording, kafka, partitions = options
    if recording is None and kafka is None:

        async def over_node(client: StreamClient) -> None:
            await run(StreamTransport(client, partitions=partitions, on_hole=on_hole), client)

        return with_client(over_node, options.node)
    if node not in (None, os.environ.get(NODE_VARIABLE)) or context is not None or via or (recording and kafka):
        raise UsageError("--recording and --kafka are in place of a node and of each other; give only one of them")
    if recording is not None:
        with closing(FileTransport(recording, partitions)) as transport:
            return run_to_signal(run, transport, None)

    async def over_kafka(servers: str) -> None:
        async with KafkaTransport(servers) as transport:
            await run(transport, None)

    run_to_signal(over_kafka, kafka)


STEPS_AT_ONCE = 1_000


def inspect(
    file: Annotated[Path, typer.Argument(), "A recording, or a JSON list of whole batches."],
    application: ApplicationOption = "plain",
) -> None:
    """Count the contents of a file of blocks and check the blocks. The exit code is 1 if there are problems.

    Example: stream-node cardinal inspect blocks.json --application evm
    """
    known = find_application(application)
    with file.open("rb") as opened:
        is_recording = opened.read(len(MAGIC)) == MAGIC
    if is_recording:
        summary = summarise_deliveries(known, replay(file))
    else:
        summary = summarise_payloads(known, parse_payloads(decompressed(file.read_bytes())))
    report: dict[str, Any] = {"file": str(file), "kind": "recording" if is_recording else "batches"}
    report |= {"application": known.name, **msgspec.to_builtins(summary)}
    numbers = "" if summary.first_number is None else f" numbered {summary.first_number} to {summary.last_number}"
    lines = [f"{counted(summary.blocks, 'block')}{numbers}, {counted(summary.values, 'value')}"]
    rows = [(each.topic, f"{each.messages:,}", f"{each.size_bytes:,}") for each in summary.topics]
    lines += columns([("topic", "messages", "bytes"), *rows], frozenset({1, 2}))
    lines += summary.told
    lines.append(f"{counted(summary.duplicates, 'repetition')}, {counted(summary.problems, 'problem')}")
    say(report, lines)
    if summary.problems:
        raise typer.Exit(1)


class ShapeOptions(NamedTuple):
    # The names are those of the fields of `SimulationOptions`.
    blocks: Annotated[int, "The number of blocks of the chain that wins over all forks."] = 100
    keys: Annotated[int, "How many keys each block updates under each prefix."] = 2
    fork_rate: Annotated[float, "The chance that a fork begins at a block."] = 0.2
    deep_reorgs: Annotated[int, "The number of reorgs that are deeper than the reorg threshold of consumers."] = 1
    producers: Annotated[int, "The number of producers. Each of them sends all messages."] = 1
    duplicate_rate: Annotated[float, "The chance that a message is delivered twice."] = 0.1
    loss_rate: Annotated[float, "The chance that a message is lost at first, and sent again."] = 0.05
    delay_max: Annotated[int, "The maximum number of messages by which a message may be late."] = 100


USUAL_SHAPE = ShapeOptions()


def simulate(
    seed: Annotated[int | None, "The same seed makes the same messages."] = None,
    shape: ShapeOptions = USUAL_SHAPE,
    expect: Annotated[Path | None, "FILE", "A file for the chain that consumers must have at the end."] = None,
    transport: TransportOptions = ANY_TRANSPORT,
) -> None:
    """Send a generated chain to test consumers. Messages are late, repeated and out of order, and the chain has forks
    and reorgs.

    Example: stream-node cardinal simulate --seed 7 --recording hard.cardinal --expect chain.json

    Read it: stream-node cardinal consume --application simulated --recording hard.cardinal
    """
    # The report at the end has the seed, so that a chain with a random seed can be made again.
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    simulation = make(random.Random(chosen), SimulationOptions(**shape._asdict()))
    if expect is not None:
        expect.write_bytes(format_payloads(simulation.chain))

    async def run(opened: Transport, client: StreamClient | None) -> None:
        started_s = time.monotonic()
        for at in range(0, len(simulation.steps), STEPS_AT_ONCE):
            await _send(opened, simulation.steps[at : at + STEPS_AT_ONCE])
        head, in_s = simulation.chain[-1], time.monotonic() - started_s
        blocks, off_chain, messages = len(simulation.chain), simulation.blocks_off_chain, len(simulation.steps)
        report: dict[str, Any] = {"seed": chosen, "blocks": blocks, "blocks_off_chain": off_chain, "messages": messages}
        report |= {"head": f"0x{head.hash.hex()}", "head_number": head.number, "seconds": round(in_s, 6)}
        text = f"{counted(blocks, 'block')} and {off_chain:,} off the chain in {counted(messages, 'message')}"
        say(report, f"{text}; seed {chosen}, head {report['head']}")

    with_transport(run, transport)


async def _send(transport: Transport, steps: list[SentRecord]) -> None:
    """Sends messages. A recording keeps the order of all messages, a node or Kafka only that of each partition."""
    if isinstance(transport, FileTransport):
        await transport.send_in_order([(step.topic, step.record) for step in steps])
        return
    outgoing: Outgoing = {}
    for step in steps:
        outgoing.setdefault(step.topic, []).append(step.record)
    await transport.send(outgoing)
