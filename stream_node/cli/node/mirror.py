"""The commands `stream-node mirror add|status|promote|remove`: follow streams of another node, and take their place."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.client import with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions, StreamArgument
from stream_node.cli.output import AS_JSON, ProgressLine, columns, counted, say, say_each, tell
from stream_node.cli.values import UsageError, time_text

if TYPE_CHECKING or RUNS:
    import msgspec
    import trio

    from ockam.actors.address import complete_address
    from stream_client import StreamClient
    from stream_node.fleet.mirror.protocol import (
        ADDRESS,
        MIRRORS,
        MirrorAction,
        MirrorRequest,
        MirrorResponse,
        MirrorState,
    )

HEAD = ("stream", "partition", "condition", "source", "next", "lag", "lag s", "heard", "aside")
NUMBERS = frozenset({1, 4, 5, 6})
POLL_S = 0.2
JSON_NAMES = {"stream_name": "stream", "lag_us": "lag_s", "aside_name": "aside"}


async def add(
    client: StreamClient,
    stream: StreamArgument,
    source: Annotated[
        str,
        typer.Option("--from", callback=lambda text: complete_address(text)),
        "HOST:PORT",
        "The node with the source, as the node of the mirror sees it.",
    ],
    source_name: Annotated[str | None, "The name of the source. Without it, the same name."] = None,
    force: Annotated[bool, "Move messages that the source does not have to another stream, and follow."] = False,
) -> None:
    """Make a stream of the node a mirror: it gets the messages of its source, at the same indexes, and takes no pushes.

    All partitions are followed, also those that the source gets later. Safe to repeat.

    Example: stream-node mirror add orders --from 10.0.0.5:4000
    """
    answer = await _ask(client, "ADD", stream, source=source, source_name=source_name or "", force=force)
    count, of = len(answer.mirrors), f"{source_name or stream} at {source}"
    report = {"stream": stream, "source": source, "partitions": count}
    say(report, f"{stream} follows {of}, with {counted(count, 'partition')}")


async def status(client: StreamClient, stream: Annotated[str, typer.Argument(), "Only this stream."] = "") -> None:
    """List the mirrors of the node: whether they follow, and how far they are behind in messages and seconds.

    Example: stream-node mirror status --json
    """
    found = (await _ask(client, "STATUS", stream)).mirrors
    say_each(map(_row, found), columns([HEAD, *map(_cells, found)], NUMBERS) if found else "no mirrors")
    for each in found:
        if each.reason and not AS_JSON.get():
            tell(f"{each.stream_name}/{each.partition}: {each.reason}")


def promote(
    stream: StreamArgument,
    force: Annotated[bool, "Do not wait for the source: it is lost. Messages may be missing."] = False,
    source_goes_on: Annotated[
        bool, "With --force: although the source answers, and cannot become a mirror. Stop its publishers first."
    ] = False,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Make the mirror of a stream its primary. The source becomes a mirror of it.

    Nothing is lost: the source first stops taking pushes, and what is missing is copied. With --force, the command says
    how far the mirror was behind when it last heard of its source. A source that returns later is refused, moves the
    messages that nobody else has to another stream, and follows. --force is refused while a source answers that cannot
    become a mirror: a member of a cluster, for example.

    Example: stream-node mirror promote orders
    """
    if source_goes_on and not force:
        raise UsageError("--source-goes-on needs --force")

    async def run(client: StreamClient) -> None:
        promotion_id = 0 if force else 1 + secrets.randbelow(2**63)
        fields = {"force": force, "promotion_id": promotion_id, "source_goes_on": source_goes_on}
        with ProgressLine() as progress:
            while True:
                answer = await _ask(client, "PROMOTE", stream, **fields)
                if answer.done:
                    break
                there = sum(each.next_index for each in answer.mirrors)
                ends = sum(max(each.next_index, each.source_next_index) for each in answer.mirrors)
                progress.draw("copying", there, ends, [counted(ends - there, "message") + " missing"])
                await trio.sleep(POLL_S)
        before = [each for each in answer.mirrors if each.condition.name not in ("FENCING", "UNFENCED")]
        behind, heard_us = sum(each.lag for each in before), min((each.heard_us for each in before), default=0)
        report = {"stream": stream, "partitions": len(before), "forced": force}
        report |= {"behind": behind if force else 0, "heard_us": heard_us if force else None}
        text = f"{stream} takes pushes here now, in {counted(len(before), 'partition')}"
        say(report, f"{text}; {_lost(behind, heard_us) if force else 'nothing is lost'}")

    with_client(run, node)


async def remove(client: StreamClient, stream: StreamArgument) -> None:
    """Stop following. The stream keeps its messages, and takes pushes from now on. The source is not told.

    Example: stream-node mirror remove orders
    """
    count = len((await _ask(client, "REMOVE", stream)).mirrors)
    say({"stream": stream, "partitions": count}, f"{stream} follows nobody now, and takes pushes")


async def _ask(client: StreamClient, action: str, stream: str, **fields: Any) -> MirrorResponse:
    return await client.session.ask(ADDRESS, MIRRORS, MirrorRequest(0, MirrorAction[action], stream, **fields))


def _lost(behind: int, heard_us: int) -> str:
    if not heard_us:
        return "it had never heard of its source, so everything that the source has may be missing"
    return (
        f"it was {counted(behind, 'message')} behind when it last heard of its source, and lacks what the source has "
        f"confirmed since {time_text(heard_us)}"
    )


def _row(state: MirrorState) -> dict[str, Any]:
    row = msgspec.structs.asdict(state) | {"condition": state.condition.name.lower(), "lag_us": state.lag_us / 1e6}
    row["aside_name"] = state.aside_name or None
    return {JSON_NAMES.get(name, name): value for name, value in row.items()}


def _cells(state: MirrorState) -> Sequence[str]:
    return (
        state.stream_name,
        f"{state.partition:,}",
        state.condition.name.lower(),
        state.source if state.source_name == state.stream_name else f"{state.source} {state.source_name}",
        f"{state.next_index:,}",
        f"{state.lag:,}",
        f"{state.lag_us / 1e6:.1f}",
        time_text(state.heard_us) if state.heard_us else "never",
        f"{state.aside_name} ({state.aside_messages:,})" if state.aside_name else "-",
    )
