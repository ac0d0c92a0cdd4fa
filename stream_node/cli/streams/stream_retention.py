"""The command `stream-node stream retention`, and the functions that `stream create` shares with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stream_node.cli.client import get_partitions, with_client
from stream_node.cli.options import ANY_NODE, DryRunOption, NodeOptions, PartitionOption, StreamArgument, YesOption
from stream_node.cli.output import confirm, counted, say
from stream_node.cli.values import UsageError, parse_duration, parse_size, utc_now

if TYPE_CHECKING:
    from stream_client import Retention, Stream, StreamClient, StreamInfo


class RetentionOptions(NamedTuple):
    max_age: Annotated[
        int | None, typer.Option(parser=parse_duration, metavar="AGE", help="Keep messages for this long: 12h, 7d.")
    ] = None
    max_messages: Annotated[int | None, typer.Option(min=0, help="Keep the newest N messages of each partition.")] = (
        None
    )
    max_bytes: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Keep the newest messages of each partition, up to this size: 500MB, 1GiB.",
        ),
    ] = None

    def make(self) -> Retention | None:
        from stream_client import Retention

        return None if self == NO_LIMITS else Retention(*self)


NO_LIMITS = RetentionOptions()


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
            await confirm_retention(found, kept)
        for each in found:
            before = (await each.info()).retention
            if not dry_run:
                await each.set_retention(kept)
            place = {"stream": stream, "partition": each.partition}
            report = {**place, "before": kept_row(before), "retention": kept_row(kept), "dry_run": dry_run}
            done = "would keep" if dry_run else "keeps"
            say(report, f"{stream}/{each.partition} {done} {kept_text(kept)}, before {kept_text(before)}")

    with_client(run, node)


async def confirm_retention(streams: Sequence[Stream], kept: Retention | None) -> None:
    """Asks before a retention deletes stored messages. Raises CommandFailed.
    kept: None means the node's default, which the command does not know: it can delete every message."""
    found, now_us = [await each.info() for each in streams], int(utc_now().timestamp() * 1e6)
    held = sum(each.count for each in found if each.retention != kept and _is_beyond(each, kept, now_us))
    if held:
        confirm(f"Keep only {kept_text(kept)} in place of {counted(held, 'message')} of {streams[0].name}?")


def _is_beyond(found: StreamInfo, kept: Retention | None, now_us: int) -> bool:
    """Whether a retention may delete messages of a partition. If `kept` is None, any stored message counts."""
    if kept is None:
        return found.count > 0
    return (
        (kept.messages is not None and found.count > kept.messages)
        or (kept.size_bytes is not None and found.size_bytes > kept.size_bytes)
        or (kept.age_s is not None and (found.first_time_us or now_us) < now_us - kept.age_s * 1e6)
    )


def kept_row(kept: Retention | None) -> dict[str, int | None] | None:
    if kept is None:
        return None
    return {"age_s": kept.age_s, "messages": kept.messages, "bytes": kept.size_bytes}


def kept_text(kept: Retention | None) -> str:
    if kept is None:
        return "the node's default"
    limits = [
        counted(limit, noun)
        for limit, noun in ((kept.age_s, "second"), (kept.messages, "message"), (kept.size_bytes, "byte"))
        if limit is not None
    ]
    return " and ".join(limits) or "everything"
