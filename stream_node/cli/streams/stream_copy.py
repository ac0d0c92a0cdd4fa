"""The command `stream-node stream copy`: copies a stream to another name or to another node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from stream_node.cli.client import get_partitions, open_client, with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions, not_empty
from stream_node.cli.output import ProgressLine, counted, say
from stream_node.cli.values import CommandFailed, UsageError

if TYPE_CHECKING or RUNS:
    from ockam.actors.address import complete_address
    from stream_client import RichMessage, Stream, StreamClient, StreamInfo
    from stream_node.cli.contexts import Target, contexts_file, load_contexts

PAGE_MESSAGES = 1_000


def copy(
    source: Annotated[str, typer.Argument(callback=not_empty), "The stream to copy."],
    target: Annotated[str, typer.Argument(callback=not_empty), "The name of the copy."],
    to: Annotated[str | None, "HOST:PORT|CONTEXT", "The node that gets the copy. Without it, the same node."] = None,
    resume: Annotated[
        bool, "Continue a copy that was interrupted, or copy the messages that are new since then."
    ] = False,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Copy a stream with its partitions, indexes, keys, headers, times and retention.

    Example: stream-node stream copy orders orders --to 10.0.0.6:4000

    Under another name, and later its new messages: stream-node stream copy orders orders-copy --resume

    Every message keeps its partition and index, so saved positions of consumers stay valid. Messages that are published
    during the copy may be missing. --resume copies them, and is safe to repeat. If the target node has a default
    retention, it applies to the copy. The age of a message is then counted from its original time.
    """
    if to is None and source == target:
        raise UsageError("a stream cannot be copied onto itself; choose another name, or another node with --to")

    async def run(client: StreamClient) -> None:
        async with AsyncExitStack() as stack:
            other = client
            if to is not None:
                there = load_contexts(contexts_file()).targets.get(to) or Target(complete_address(to))
                other = await stack.enter_async_context(open_client(there, is_given=False, believes_note=False))
            if other.address == client.address and not node.via and source == target:
                raise UsageError(f"{source!r} is at {other.address}: a stream cannot be copied onto itself")
            sources = await get_partitions(client, source, None)
            infos = [await each.info() for each in sources]
            targets, made = await _open_target(other, target, infos, resume=resume)
            copied, there_before, total = 0, 0, sum(each.count for each in infos)
            with ProgressLine() as progress:

                def told(messages: int) -> None:
                    nonlocal copied
                    copied += messages
                    progress.draw("copying", there_before + copied, total, [counted(copied, "message")])

                for original, info, copy_of in zip(sources, infos, targets, strict=True):
                    # A copy that was interrupted goes on after the last message that both streams have.
                    begin = await _begin(original, info, copy_of)
                    there_before += max(0, begin - info.first_index)
                    await _copy_partition(original, begin, info.next_index, copy_of, told)
                    if made and info.retention is not None:
                        await copy_of.set_retention(info.retention)
        report = {"source": source, "target": target, "partitions": len(targets), "copied": copied}
        text = f"{counted(copied, 'message')} in {counted(len(targets), 'partition')} copied from {source} to {target}"
        text += ("" if to is None else f" at {to}") + (f"; {there_before:,} were there before" if there_before else "")
        say({**report, "there_before": there_before, "made": made}, text)

    with_client(run, node)


async def _open_target(
    client: StreamClient, name: str, infos: Sequence[StreamInfo], *, resume: bool
) -> tuple[Sequence[Stream], bool]:
    """Returns the target partition for each source partition, and whether the target was created now. Raises
    CommandFailed if an existing target does not fit."""
    wanted = [each.partition for each in infos]
    found = await client.find_stream(name)
    if found is None:
        made = await client.create_partitioned(name, wanted[-1] + 1)
        return [made.get_partition(partition) for partition in wanted], True
    there = await found.info()
    # With another number of partitions, keys would belong to other partitions than in the original.
    if [each.partition for each in there] != list(range(wanted[-1] + 1)):
        raise CommandFailed(
            f"{name} has {counted(len(there), 'partition')} already, and a copy of {infos[0].stream_name} needs "
            f"{wanted[-1] + 1}; choose another name"
        )
    if any(each.next_index for each in there) and not resume:
        held = counted(sum(each.count for each in there), "message")
        raise CommandFailed(
            f"{name} is there with {held}; --resume goes on if it is a copy of {infos[0].stream_name}, else choose "
            "another name"
        )
    return [found.get_partition(partition) for partition in wanted], False


async def _begin(source: Stream, info: StreamInfo, target: Stream) -> int:
    """Returns the index of the first message that the target lacks. Raises CommandFailed if it cannot be appended
    there; only the last message of the target is compared."""
    there = await target.info()
    if not there.next_index:
        return info.first_index
    place, last = f"{target.name}/{target.partition}", there.next_index - 1
    if there.next_index > info.next_index or there.next_index < info.first_index:
        has = f"messages from {info.first_index} to {info.next_index - 1}" if info.count else "no message"
        raise CommandFailed(f"{place} ends at {there.next_index}, and {source.name} has {has}: nothing can follow on")
    if there.count and last >= info.first_index:
        (original,) = (await source.pull_page(last, 1)).messages
        if not await _has(target, original):
            raise CommandFailed(f"{place} is no copy of {source.name}: the messages at {last} differ")
    return there.next_index


async def _copy_partition(
    source: Stream, index: int, end_index: int, target: Stream, told: Callable[[int], None]
) -> None:
    """Copies the messages from `index` to before `end_index`. Raises CommandFailed if another client pushes there."""
    place = f"{target.name}/{target.partition}"
    while index < end_index:
        messages = (await source.pull_page(index, min(PAGE_MESSAGES, end_index - index))).messages
        if not messages:
            return
        if messages[0].index != index and index:
            if (await target.info()).next_index:
                raise CommandFailed(
                    f"{source.name} no longer has the messages from {index} on, which {place} needs next"
                )
            index = messages[0].index
        answer = await target.copy_in(index, messages)
        index += len(messages)
        # If the answer was lost and the request repeated, the messages of the first request are already stored.
        if not answer.stored and not (answer.next_index == index and await _has(target, messages[-1])):
            raise CommandFailed(f"somebody else writes to {place}: it ends at {answer.next_index}, not at {index}")
        told(len(messages))


async def _has(target: Stream, message: RichMessage) -> bool:
    """Whether the target has this message at the same index. Times are not compared: the clocks may differ."""
    found, wanted = (
        [(each.index, each.key, list(each.headers), each.data) for each in messages]
        for messages in ((await target.pull_page(message.index, 1)).messages, [message])
    )
    return found == wanted
