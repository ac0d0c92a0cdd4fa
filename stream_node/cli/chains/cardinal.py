"""The commands `stream-node cardinal produce`, which sends blocks as messages, and `consume`, which reads them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from stream_node.cli.chains.cardinal_files import (
    ANY_TRANSPORT,
    ApplicationOption,
    TransportOptions,
    decompressed,
    find_application,
    parse_block,
    parse_start,
    with_transport,
)
from stream_node.cli.options import RUNS, FollowOption
from stream_node.cli.output import AS_JSON, counted, say, say_json, say_text, tell
from stream_node.cli.streams.messages import FailOnHoleOption, flush, report_hole
from stream_node.cli.values import CommandFailed, UsageError

if TYPE_CHECKING or RUNS:
    from cardinal_streams.application import Application
    from cardinal_streams.consume.checkpoints import CheckpointStore, FileCheckpoints, NodeCheckpoints
    from cardinal_streams.consume.consuming import consume as consume_chain
    from cardinal_streams.consume.consuming import consume_unordered
    from cardinal_streams.errors import PayloadTextError
    from cardinal_streams.machines.events import (
        BadMessage,
        Dropped,
        Evicted,
        Gap,
        LeftOut,
        NeedsReorg,
        OpenReorg,
        PrefixUnmet,
        ReassemblyStatistics,
        Refused,
        ReorgRefused,
        ReorgStalled,
        Revert,
        Stalled,
    )
    from cardinal_streams.payload import CompleteBatch, Payload, parse_payloads
    from cardinal_streams.produce.publishing import ChainBlock, publish
    from cardinal_streams.produce.simulation_machine import GENESIS, SIMULATED
    from cardinal_streams.transports.transport import Transport
    from stream_client import StreamClient, StreamRemade

GROUP_BLOCKS = 64
"""The number of blocks that are sent together. For each group, the command waits for the disk twice."""


def produce(
    files: Annotated[
        list[Path] | None,
        typer.Argument(),
        "Files with JSON lists of whole batches. Without files, the command reads standard input.",
    ] = None,
    application: ApplicationOption = "plain",
    transport: TransportOptions = ANY_TRANSPORT,
    repair: Annotated[bool, "Send all blocks, stored or not: consumers take the messages that they lack."] = False,
) -> None:
    """Send the blocks that are not stored yet as messages, and wait until all are on disk. Blocks with sub-batches
    are refused.

    Example: stream-node cardinal produce blocks.json --application evm

    After messages were lost: stream-node cardinal produce blocks.json.gz --application evm --repair

    Into a file: stream-node cardinal produce blocks.json --recording blocks.cardinal
    """
    known = find_application(application)
    payloads: list[Payload] = []
    for data in (path.read_bytes() for path in files) if files else (sys.stdin.buffer.read(),):
        for index, payload in enumerate(parse_payloads(decompressed(data))):
            if payload.sub_batches:
                # The text has only the ids of sub-batches, so a consumer could never complete the block.
                paths = ", ".join(map(repr, payload.sub_batches))
                raise PayloadTextError(f"a whole batch cannot announce sub batches ({paths})", f"$[{index}].batches")
            payloads.append(payload)

    async def run(opened: Transport, client: StreamClient | None) -> None:
        started_s = time.monotonic()
        new = 0
        async with publish(known, opened, redundant=not repair) as publisher:
            for at in range(0, len(payloads), GROUP_BLOCKS):
                new += await publisher.send([ChainBlock(payload) for payload in payloads[at : at + GROUP_BLOCKS]])
            messages = publisher.statistics().messages_made
        seconds = time.monotonic() - started_s
        report: dict[str, Any] = {"application": known.name, "blocks": len(payloads), "sent": new}
        report |= {"skipped": len(payloads) - new, "messages": messages, "seconds": round(seconds, 6)}
        text = f"{counted(new, 'block')} in {counted(messages, 'message')}, {len(payloads) - new:,} were there"
        say(report, f"{text} ({seconds:.2f} s)")

    with_transport(run, transport)


def consume(
    client_id: Annotated[
        str | None,
        typer.Option("--client"),
        "The consumer whose position is resumed and saved. Without it, reading begins at the first message.",
    ] = None,
    application: ApplicationOption = "plain",
    transport: TransportOptions = ANY_TRANSPORT,
    position: Annotated[Path | None, "FILE", "A file for the position, in place of --client."] = None,
    start: Annotated[str | None, "NUMBER:HASH:WEIGHT", "The block to continue from if no position is saved."] = None,
    unordered: Annotated[bool, "Print complete blocks as they come, with forks."] = False,
    follow: FollowOption = False,
    limit: Annotated[int | None, typer.Option(min=1), "Stop after this number of updates."] = None,
    until: Annotated[str | None, "BLOCK", "Stop after the change that adds this block: its number or hash."] = None,
    reorg_timeout_s: Annotated[
        float, typer.Option("--reorg-timeout", min=0.1), "Give up a deep reorg that brings nothing for so many seconds."
    ] = 600.0,
    values: Annotated[bool, "Print the changes of each block too."] = False,
    fail_on_hole: FailOnHoleOption = False,
) -> None:
    """Print each change of the heaviest chain: the removed and added blocks, in order. Problems are printed on stderr.
    The exit code is 1 if the chain lacks a block that others follow, or ends before the block of --until.

    Example: stream-node cardinal consume --application evm --client indexer --follow --json

    From a file: stream-node cardinal consume --recording blocks.cardinal --position done.json --values
    """
    known = find_application(application)
    # Without --start, a simulated chain begins at its first block.
    first = parse_start(start) if start is not None else GENESIS if known is SIMULATED else None
    last = None if until is None else parse_block(until)
    if client_id is not None and (transport.recording or transport.kafka or position):
        raise UsageError("only a node keeps positions of --client; give --position FILE alone")
    warnings = Warnings()
    # The number of messages that were found missing since the last update.
    missing = 0

    async def run(opened: Transport, client: StreamClient | None) -> None:
        nonlocal missing
        store: CheckpointStore | None = None if position is None else FileCheckpoints(position)
        if client is not None and client_id is not None:
            store = NodeCheckpoints(client, client_id)
        left, end = limit, not follow
        source: Any
        if unordered:
            source = consume_unordered(known, opened, store, stop_at_end=end, on_event=warnings)
        else:
            source = consume_chain(
                known, opened, store, start=first, stop_at_end=end, reorg_timeout_s=reorg_timeout_s, on_event=warnings
            )
        async with source as updates:
            async for update in updates:
                to, removed, added = (
                    (None, (), (update.batch,)) if unordered else (update.reverted_to, update.removed, update.added)
                )
                if AS_JSON.get():
                    row: dict[str, Any] = {"reverted_to": None}
                    if to is not None:
                        row["reverted_to"] = {"number": to.number, "hash": _hex(to.hash)}
                    row["removed"] = [_row(batch, values) for batch in removed]
                    row["added"] = [_row(batch, values) for batch in added]
                    say_json(row | ({"missing": missing} if missing else {}))
                    missing = 0
                else:
                    say_text(_lines(to, removed, added, values))
                # The consumer may save its position after this update.
                flush()
                update.done()
                left = None if left is None else left - 1
                if left == 0 or any(last in (batch.number, batch.hash) for batch in added):
                    return
            gaps = () if unordered else updates.gaps()
            reorg = None if unordered else updates.machine.active_reorg
            warnings.end(known, updates.statistics().reassembly, reorg, gaps)
        if until is not None:
            raise CommandFailed(f"the chain ends before block {until}")
        if gaps:
            raise CommandFailed(f"the chain lacks {counted(len(gaps), 'block')}; send again what is missing (--repair)")

    def pass_over(source: str, first_missing: int, next_there: int) -> None:
        nonlocal missing
        # 0 means that the consumer had no position. It began at the earliest stored message, and has missed nothing.
        if first_missing:
            report_hole(source, first_missing, next_there, fail_on_hole)
            missing += next_there - first_missing

    with_transport(run, transport, on_hole=pass_over)


Batches: TypeAlias = "tuple[CompleteBatch, ...]"
Gaps: TypeAlias = "tuple[Gap, ...]"


def _row(batch: CompleteBatch, values: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"number": batch.number, "hash": _hex(batch.hash), "parent": _hex(batch.parent)}
    row |= {"weight": hex(batch.weight), "values": len(batch.values), "deletes": len(batch.deletes)}
    if values:
        row["contents"] = {key: _hex(value) for key, value in sorted(batch.values.items())}
        row["deleted"] = sorted(batch.deletes)
    return row


def _lines(reverted_to: Revert | None, removed: Batches, added: Batches, values: bool) -> Iterator[str]:
    """Yields a change as text. reverted_to: the last block that stays; None: no block is removed."""
    for batch in reversed(removed):
        yield f"- {batch.number} {_hex(batch.hash)}"
    if reverted_to is not None:
        yield f"= {reverted_to.number} {_hex(reverted_to.hash)}"
    for batch in added:
        held = f"{counted(len(batch.values), 'value')}, {counted(len(batch.deletes), 'delete')}"
        yield f"+ {batch.number} {_hex(batch.hash)} {held}"
        if values:
            yield from (f"    {key} = {_hex(value)}" for key, value in sorted(batch.values.items()))
            yield from (f"    {key} deleted" for key in sorted(batch.deletes))


def _hex(raw: bytes) -> str:
    return f"0x{raw.hex()}"


TOLD_MAX = 20
"""The maximum number of warnings that are printed. Further warnings are only counted."""


class Warnings:
    """The `on_event` function of a consumer. It prints at most TOLD_MAX warnings, and at the end counts the others."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, event: Any) -> None:
        text = _text_of(event)
        self._count += text is not None
        if text is not None and self._count <= TOLD_MAX:
            tell(text)

    def end(
        self, application: Application, statistics: ReassemblyStatistics, unfinished: OpenReorg | None, gaps: Gaps
    ) -> None:
        if self._count > TOLD_MAX:
            tell(f"{self._count - TOLD_MAX:,} more like these")
        if unfinished is not None:
            tell(f"the reorg to 0x{unfinished.hash.hex()} is not complete, and what came after it is not printed")
        for line in _lines_of(gaps):
            tell(line)
        if statistics.incomplete:
            tell(f"{counted(statistics.incomplete, 'block')} incomplete, and not printed")
        if not statistics.messages:
            tell(f"there is nothing to read on the topics of {application.name!r}: {', '.join(application.topics)}")


def _lines_of(gaps: Gaps) -> list[str]:
    lines = [
        f"block 0x{gap.hash.hex()} is missing, and {counted(gap.waiting, 'block')} wait for it: {gap.missing}"
        for gap in gaps[:TOLD_MAX]
    ]
    return lines + [f"{len(gaps) - TOLD_MAX:,} more missing blocks"] * (len(gaps) > TOLD_MAX)


def _text_of(event: Any) -> str | None:
    """Returns a warning for an event that loses data, or on which an operator must act; else None."""
    match event:
        case BadMessage(source, offset, error):
            return f"no message in {source} at {offset}: {error}"
        case Refused(hash_, outcome, what):
            return f"{what} does not fit block 0x{hash_.hex()} ({outcome.name})"
        case Evicted(hash_, reason, missing):
            return f"block 0x{hash_.hex()} was given up ({reason.name}): {missing}"
        case Dropped(hash_, number, _, reason):
            return f"block {number} 0x{hash_.hex()} was dropped ({reason.name})"
        case NeedsReorg(hash_, number, _):
            return f"block {number} 0x{hash_.hex()} is heavier and forks too deep: it waits for a Reorg message"
        case ReorgRefused(hash_, why):
            return f"the reorg to 0x{hash_.hex()} was refused: {why}"
        case ReorgStalled(hash_, _, idle_s, is_given_up):
            done = "and is given up" if is_given_up else "and nothing else is read meanwhile"
            return f"the reorg to 0x{hash_.hex()} has brought nothing for {idle_s:.0f} s, {done}"
        case Stalled(gaps, age_s):
            return f"nothing new for {age_s:.0f} s; {'; '.join(_lines_of(gaps[:1]))}"
        case LeftOut(hash_, number):
            return f"block {number} 0x{hash_.hex()} is left out: the chain begins after it; --start says where to begin"
        case PrefixUnmet(pattern):
            return f"the tracked pattern {pattern!r} meets no prefix of the application"
        case StreamRemade():
            return f"{event}; everything is read again from the beginning"
        case _:
            return None
