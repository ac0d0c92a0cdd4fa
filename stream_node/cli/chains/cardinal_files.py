"""The commands `stream-node cardinal inspect` (checks files) and `simulate` (sends a test chain in disorder)."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.chains.cardinal_options import (
    ANY_TRANSPORT,
    ApplicationOption,
    TransportOptions,
    decompressed,
    find_application,
    with_transport,
)
from stream_node.cli.output import columns, counted, say

if TYPE_CHECKING:
    from cardinal_streams.produce.simulation_machine import SentRecord
    from cardinal_streams.transports.transport import Transport
    from stream_client import StreamClient

STEPS_AT_ONCE = 1_000


def inspect(
    file: Annotated[Path, typer.Argument(), "A recording, or a JSON list of whole batches."],
    application: ApplicationOption = "plain",
) -> None:
    """Count the contents of a file of blocks and check the blocks. The exit code is 1 if there are problems.

    Example: stream-node cardinal inspect blocks.json --application evm
    """
    import msgspec

    from cardinal_streams.inspection import summarise_deliveries, summarise_payloads
    from cardinal_streams.payload_text import parse_payloads
    from cardinal_streams.transports.file_transport import replay
    from cardinal_streams.transports.recording import MAGIC

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


def simulate(
    seed: Annotated[int | None, "The same seed makes the same messages."] = None,
    blocks: Annotated[int, "The number of blocks of the chain that wins over all forks."] = 100,
    keys: Annotated[int, "How many keys each block updates under each prefix."] = 2,
    fork_rate: Annotated[float, "The chance that a fork begins at a block."] = 0.2,
    deep_reorgs: Annotated[int, "The number of reorgs that are deeper than the reorg threshold of consumers."] = 1,
    producers: Annotated[int, "The number of producers. Each of them sends all messages."] = 1,
    duplicate_rate: Annotated[float, "The chance that a message is delivered twice."] = 0.1,
    loss_rate: Annotated[float, "The chance that a message is lost at first, and sent again."] = 0.05,
    delay_max: Annotated[int, "The maximum number of messages by which a message may be late."] = 100,
    expect: Annotated[Path | None, "FILE", "A file for the chain that consumers must have at the end."] = None,
    transport: TransportOptions = ANY_TRANSPORT,
) -> None:
    """Send a generated chain to test consumers. Messages are late, repeated and out of order, and the chain has forks
    and reorgs.

    Example: stream-node cardinal simulate --seed 7 --recording hard.cardinal --expect chain.json

    Read it: stream-node cardinal consume --application simulated --recording hard.cardinal
    """
    from cardinal_streams.payload_text import format_payloads
    from cardinal_streams.produce.simulation_machine import SimulationOptions
    from cardinal_streams.produce.simulation_machine import simulate as make

    options = SimulationOptions(
        blocks=blocks,
        keys=keys,
        fork_rate=fork_rate,
        deep_reorgs=deep_reorgs,
        producers=producers,
        duplicate_rate=duplicate_rate,
        loss_rate=loss_rate,
        delay_max=delay_max,
    )
    # The report at the end has the seed, so that a chain with a random seed can be made again.
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    simulation = make(random.Random(chosen), options)
    if expect is not None:
        expect.write_bytes(format_payloads(simulation.chain))

    async def run(opened: Transport, client: StreamClient | None) -> None:
        started_s = time.monotonic()
        for at in range(0, len(simulation.steps), STEPS_AT_ONCE):
            await _send(opened, simulation.steps[at : at + STEPS_AT_ONCE])
        head, in_s = simulation.chain[-1], time.monotonic() - started_s
        report = {
            "seed": chosen,
            "blocks": len(simulation.chain),
            "blocks_off_chain": simulation.blocks_off_chain,
            "messages": len(simulation.steps),
            "head": f"0x{head.hash.hex()}",
            "head_number": head.number,
            "seconds": round(in_s, 6),
        }
        text = f"{counted(len(simulation.chain), 'block')} and {simulation.blocks_off_chain:,} off the chain in "
        text += f"{counted(len(simulation.steps), 'message')}; seed {chosen}, head {report['head']}"
        say(report, text)

    with_transport(run, transport)


async def _send(transport: Transport, steps: list[SentRecord]) -> None:
    """A recording keeps the order of the messages; a node or Kafka only within one partition."""
    from cardinal_streams.produce.producer import Outgoing
    from cardinal_streams.transports.file_transport import FileTransport

    if isinstance(transport, FileTransport):
        await transport.send_in_order([(step.topic, step.record) for step in steps])
        return
    outgoing: Outgoing = {}
    for step in steps:
        outgoing.setdefault(step.topic, []).append(step.record)
    await transport.send(outgoing)
