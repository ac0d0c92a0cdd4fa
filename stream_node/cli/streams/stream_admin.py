"""The commands `stream-node stream create|list|info|delete|truncate|retention`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.client import get_partitions, with_client
from stream_node.cli.options import (
    ANY_NODE,
    RUNS,
    DryRunOption,
    NodeOptions,
    PartitionOption,
    StreamArgument,
    YesOption,
)
from stream_node.cli.output import AS_JSON, age_text, columns, confirm, counted, say, say_each, say_json, size_text
from stream_node.cli.values import UsageError, parse_duration, parse_index_or_time, parse_size, utc_now

if TYPE_CHECKING or RUNS:
    from stream_client import PartitionedStream, RequestRefused, Retention, Stream, StreamClient, StreamInfo

HEAD = ("stream", "partition", "first", "next", "messages", "bytes", "newest", "keeps")
NUMBERS = frozenset({1, 2, 3, 4, 5})


class RetentionOptions(NamedTuple):
    max_age: Annotated[
        int | None, typer.Option(parser=parse_duration), "AGE", "Keep messages for this long: 12h, 7d."
    ] = None
    max_messages: Annotated[int | None, typer.Option(min=0), "Keep the newest N messages of each partition."] = None
    max_bytes: Annotated[
        int | None,
        typer.Option(parser=parse_size),
        "SIZE",
        "Keep the newest messages of each partition, up to this size: 500MB, 1GiB.",
    ] = None

    def make(self) -> Retention | None:
        return None if self == NO_LIMITS else Retention(*self)


NO_LIMITS = RetentionOptions()


async def create(
    client: StreamClient,
    stream: StreamArgument,
    partitions: Annotated[
        int | None,
        typer.Option(min=1),
        "The minimum number of partitions. Missing partitions are created. Without it, a new stream gets 1.",
    ] = None,
    limits: RetentionOptions = NO_LIMITS,
    yes: YesOption = False,
) -> None:
    """Create a stream, or its missing partitions, and print the number of its partitions. Safe to repeat.

    If a retention would delete messages of a stream that exists, the command first asks, as `stream retention` does.

    Example: stream-node stream create orders --partitions 4 --max-age 7d

    Only this command adds partitions to a stream. With more partitions, a key may belong to another partition
    than before.
    """
    kept, before, made = limits.make(), None, None
    now: Sequence[Stream] = ()
    try:
        before, is_listed = await client.find_stream(stream), True
    except RequestRefused:
        # The earlier partitions on a peer that does not list its streams are unknown.
        is_listed = False
    if before is None or partitions is not None:
        now = (await client.create_partitioned(stream, partitions or 1)).partitions
    if is_listed:
        # The stream is read again: it may have partitions above the requested number, also some of other clients.
        now = (await client.get_stream(stream)).partitions
        made = len(now) - (0 if before is None else len(before.partitions))
    if kept is not None:
        if not yes:
            await _confirm_retention(now, kept)
        for each in now:
            await each.set_retention(kept)
    name = now[0].name
    report = {"stream": name, "partitions": len(now), "made": made, "retention": _kept_row(kept)}
    say(report, _created_text(name, now, before, made))


async def list_all(
    client: StreamClient,
    prefix: Annotated[str, typer.Argument(), "Only streams whose names begin with this text."] = "",
) -> None:
    """List streams, with one line for each partition. `newest` says how long ago the newest message was stored.

    Example: stream-node stream list orders --json
    """
    rows: list[tuple[str, ...]] = [HEAD]
    async for each in client.list_streams(prefix):
        if AS_JSON.get():
            say_json(_row(each))
        else:
            rows.append(_cells(each))
    say_each((), columns(rows, NUMBERS) if len(rows) > 1 else "no streams")


async def info(client: StreamClient, stream: StreamArgument, partition: PartitionOption = None) -> None:
    """Print the first and next index, the size, the newest time and the retention of each partition of a stream.

    Example: stream-node stream info orders
    """
    found = [await each.info() for each in await get_partitions(client, stream, partition)]
    say_each(map(_row, found), columns([HEAD, *map(_cells, found)], NUMBERS))


async def delete(
    client: StreamClient,
    stream: StreamArgument,
    partition: PartitionOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    keep_positions: Annotated[bool, "Keep the saved positions of the consumers, for a look at them later."] = False,
) -> None:
    """Delete a stream with all its messages, and with the saved positions of its consumers.

    The command first asks at a terminal. In a script it needs --yes.

    Example: stream-node stream delete orders --dry-run
    """
    found = await get_partitions(client, stream, partition)
    if not (dry_run or yes):
        messages = sum([(await each.info()).count for each in found])
        what = f"{counted(len(found), 'partition')} and {counted(messages, 'message')} of {stream}"
        confirm(f"Delete {what} at {client.address}?")
    messages = 0
    for each in found:
        messages += (await each.info()).count if dry_run else await each.delete(keep_positions=keep_positions)
    report = {"stream": stream, "partitions": len(found), "deleted": messages, "dry_run": dry_run}
    done = "would be deleted" if dry_run else "deleted"
    say(report, f"{counted(len(found), 'partition')} and {counted(messages, 'message')} of {stream} {done}")


async def truncate(
    client: StreamClient,
    stream: StreamArgument,
    end: Annotated[
        Any,
        typer.Option("--before", parser=lambda text: parse_index_or_time(text, utc_now())),
        "INDEX|TIME|AGE",
        "Delete the messages before this index, time or age: 500, 2026-11-01T08:00Z, 7d.",
    ],
    partition: PartitionOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete the messages before an index or a time, or those older than an age. Their indexes are never used again.

    The command first asks at a terminal, unless there is nothing to delete. In a script it needs --yes.

    Example: stream-node stream truncate orders --before 7d --dry-run

    In one partition: stream-node stream truncate orders --before 5000 --partition 2
    """
    found = await get_partitions(client, stream, partition)
    if isinstance(end, int) and len(found) > 1:
        raise UsageError(f"an index is of one partition, and {stream} has {len(found)}; say which by --partition")
    # The number is known before the question, so that the user knows what is at stake.
    if not (dry_run or yes) and (messages := sum([(await _foreseen(each, end))[0] for each in found])):
        confirm(f"Delete {counted(messages, 'message')} of {stream} at {client.address}?")
    for each in found:
        if dry_run:
            deleted, first_index = await _foreseen(each, end)
        else:
            answer = await each.truncate(end)
            deleted, first_index = answer.deleted, answer.first_index
        report = {"stream": stream, "partition": each.partition, "deleted": deleted}
        done = "would be deleted" if dry_run else "deleted"
        text = f"{counted(deleted, 'message')} {done} from {stream}/{each.partition}, it begins at {first_index}"
        say({**report, "first_index": first_index, "dry_run": dry_run}, text)


def retention(
    stream: StreamArgument,
    limits: RetentionOptions = NO_LIMITS,
    default: Annotated[bool, "Remove the stream's own retention; the defaults of the node then apply."] = False,
    partition: PartitionOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Replace the retention of a stream: how long, how many or how large messages are kept. Messages beyond its limits
    are deleted within seconds.

    If there are such messages, the command first asks at a terminal. In a script it then needs --yes.

    Example: stream-node stream retention orders --max-age 7d --max-bytes 10GiB --dry-run

    The node's default: stream-node stream retention orders --default
    """
    kept = limits.make()
    if (kept is not None) == default:
        raise UsageError("say what to keep by --max-age, --max-messages and --max-bytes, or --default, not both")

    async def run(client: StreamClient) -> None:
        found = await get_partitions(client, stream, partition)
        if not (dry_run or yes):
            await _confirm_retention(found, kept)
        for each in found:
            before = (await each.info()).retention
            if not dry_run:
                await each.set_retention(kept)
            place = {"stream": stream, "partition": each.partition}
            report = {**place, "before": _kept_row(before), "retention": _kept_row(kept), "dry_run": dry_run}
            done = "would keep" if dry_run else "keeps"
            say(report, f"{stream}/{each.partition} {done} {_kept_text(kept)}, before {_kept_text(before)}")

    with_client(run, node)


def _created_text(name: str, now: Sequence[Stream], before: PartitionedStream | None, made: int | None) -> str:
    held = counted(len(now), "partition")
    if made is None:
        return f"{name} has the {held} asked for; this peer does not tell whether it has more"
    if not made:
        return f"{name} exists and has {held}; nothing was made"
    if before is None:
        return f"{name} was made with {held}"
    # Keys were distributed over `count` partitions, some of which may have been deleted.
    if now[-1].partition < before.count:
        return f"{name} has {held} again, {made} of them new"
    return (
        f"{name} has {held} now, {made} of them new: from now on a key may belong to another partition than "
        "before, so messages with the same key may lie in two"
    )


async def _foreseen(stream: Stream, end: int | datetime) -> tuple[int, int]:
    """Returns how many messages a truncation would delete, and the first index that remains."""
    now = await stream.info()
    index = end if isinstance(end, int) else await stream.find_index(end)
    first_index = min(max(index, now.first_index), now.next_index)
    return first_index - now.first_index, first_index


async def _confirm_retention(streams: Sequence[Stream], kept: Retention | None) -> None:
    """Asks before a retention deletes stored messages. kept: None: the node's default, which may delete all."""
    now_us, held = int(utc_now().timestamp() * 1e6), 0
    for found in [await each.info() for each in streams]:
        if found.retention != kept and (
            kept is None
            or (kept.messages is not None and found.count > kept.messages)
            or (kept.size_bytes is not None and found.size_bytes > kept.size_bytes)
            or (kept.age_s is not None and (found.first_time_us or now_us) < now_us - kept.age_s * 1e6)
        ):
            held += found.count
    if held:
        confirm(f"Keep only {_kept_text(kept)} in place of {counted(held, 'message')} of {streams[0].name}?")


def _kept_row(kept: Retention | None) -> dict[str, int | None] | None:
    if kept is None:
        return None
    return {"age_s": kept.age_s, "messages": kept.messages, "bytes": kept.size_bytes}


def _kept_text(kept: Retention | None) -> str:
    if kept is None:
        return "the node's default"
    limits = ((kept.age_s, "second"), (kept.messages, "message"), (kept.size_bytes, "byte"))
    return " and ".join(counted(limit, noun) for limit, noun in limits if limit is not None) or "everything"


def _row(found: StreamInfo) -> dict[str, Any]:
    return {
        "stream": found.stream_name,
        "partition": found.partition,
        "first_index": found.first_index,
        "next_index": found.next_index,
        "messages": found.count,
        "bytes": found.size_bytes,
        "created_us": found.created_us,
        "first_time_us": found.first_time_us,
        "last_time_us": found.last_time_us,
        "retention": _kept_row(found.retention),
    }


def _cells(found: StreamInfo) -> tuple[str, ...]:
    numbers = (found.partition, found.first_index, found.next_index, found.count)
    newest = age_text(found.last_time_us, int(utc_now().timestamp() * 1e6))
    kept = "default" if found.retention is None else _kept_text(found.retention)
    return (found.stream_name, *(f"{number:,}" for number in numbers), size_text(found.size_bytes), newest, kept)
