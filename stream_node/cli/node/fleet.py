"""The commands `stream-node cluster` (members of a cluster), `mirror` (follow streams of another node, and take their
place) and `connections` (open connections of a node)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stream_node.cli.client import ask_newer, with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions, StreamArgument, not_empty
from stream_node.cli.output import AS_JSON, ProgressLine, columns, counted, say, say_each, tell
from stream_node.cli.values import CommandFailed, UsageError, time_text

if TYPE_CHECKING or RUNS:
    import msgspec
    import trio

    from ockam.actors.address import complete_address
    from ockam.protocol import Protocol
    from stream_client import RequestTimeout, StreamClient
    from stream_node.fleet.cluster import protocol as cluster
    from stream_node.fleet.mirror.protocol import (
        ADDRESS,
        MIRRORS,
        MirrorAction,
        MirrorRequest,
        MirrorResponse,
        MirrorState,
    )
    from stream_node.node import node_connections as service

Q = TypeVar("Q")

MEMBER_HEAD = ("member", "address", "state", "shards")


async def cluster_status(client: StreamClient) -> None:
    """Print the members of the cluster, and how many of the 256 shards each one serves. Every member can be asked.

    A member is "alive", "leaving" (it gives its shards away) or "silent" (it has not written for five seconds).

    Example: stream-node cluster status --node db1:4000
    """
    await _print_members(client, cluster.STATUS, cluster.ClusterStatusRequest(0))


async def cluster_drain(
    client: StreamClient,
    member: Annotated[str, typer.Argument(callback=not_empty), "The name of the member."],
    undo: Annotated[bool, "Let the member take shards again."] = False,
) -> None:
    """Make a member give all its shards to the others. It keeps running, and forwards the messages of its clients.

    A member that is stopped does the same by itself. So this command is for a machine that is to do less, or that is
    stopped later. Print the members as `cluster status` does.

    Example: stream-node cluster drain db1
    """
    await _print_members(client, cluster.DRAIN, cluster.DrainRequest(0, member, not undo))


async def _print_members(client: StreamClient, protocol: Protocol[Q, cluster.ClusterStatus], request: Q) -> None:
    try:
        found = await client.session.ask(str(cluster.CLUSTER), protocol, request)
    except RequestTimeout as error:
        raise CommandFailed(f"{error}; is it a member of a cluster (`serve --cluster`)?") from error
    members = []
    for member in found.members:
        state = "silent" if not member.lives else "leaving" if member.leaves else "alive"
        members.append({"name": member.name, "address": member.address, "state": state, "shards": member.shards})
    unowned = sum(not shard.owner for shard in found.shards)
    report: dict[str, Any] = {"asked": found.name, "members": members, "unowned": unowned}
    rows: Sequence[Sequence[str]] = [MEMBER_HEAD, *(tuple(map(str, member.values())) for member in members)]
    lines = [*columns(rows, frozenset({3})), *([f"{unowned} shards have no owner"] if unowned else [])]
    say(report | {"shards": msgspec.to_builtins(found.shards)}, lines)


CONNECTION_HEAD = ("identity", "peer", "in/s", "out/s", "bytes in", "bytes out", "unsent")
FIGURES = frozenset(range(2, len(CONNECTION_HEAD)))


def connections(
    close: Annotated[str | None, "WHO", "Close the connection of this HOST:PORT, or all of this identity."] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000), "The largest number of connections to print."] = 20,
    node: NodeOptions = ANY_NODE,
) -> None:
    """Print which clients send and receive most: first each identity since the start of the node, then the open
    connections, also those over HTTP. In and out are as the node sees them; rates are those of the last 10 to 20
    seconds.

    With --close, end connections instead. A client connects again, so revoke its token or change its rules first.
    Connections between the workers of a node, or the members of a cluster, are left out.

    Example: stream-node connections --limit 5

    Close those of one token: stream-node connections --close token:spark
    """
    if close == "":
        raise UsageError("--close needs the HOST:PORT of a connection, or an identity; run connections to see them")

    async def run(client: StreamClient) -> None:
        if close is not None:
            request = service.CloseRequest(0, close)
            answer = await ask_newer(client, service.ADDRESS, service.CLOSE, request, "close connections")
            if not (closed := answer.closed):
                raise CommandFailed(f"the node has no other connection of {close!r}; run connections to see them")
            say({"who": close, "closed": closed}, f"{counted(closed, 'connection')} closed")
            return
        wanted = service.ConnectionsRequest(0, limit)
        found = await ask_newer(client, service.ADDRESS, service.CONNECTIONS, wanted, "tell its connections")
        rows: list[tuple[str, ...]] = [CONNECTION_HEAD]
        rows += [(each.party, f"({each.connections} open)", *_figures(each), "") for each in found.parties]
        rows += [(each.identity, each.peer, *_figures(each), f"{each.backlog_bytes:,}") for each in found.connections]
        report = {part: msgspec.to_builtins(getattr(found, part)) for part in ("total", "parties", "connections")}
        left_out = found.total - len(found.connections)
        more = [f"and {counted(left_out, 'more connection')}; --limit prints more"] if left_out else []
        say(report, [*columns(rows, FIGURES), *more])

    with_client(run, node)


def _figures(each: service.PartyTraffic | service.OpenConnection) -> Iterator[str]:
    figures = each.received_bytes_s, each.sent_bytes_s, each.received_bytes, each.sent_bytes
    return (f"{figure:,}" for figure in figures)


MIRROR_HEAD = ("stream", "partition", "condition", "source", "next", "lag", "lag s", "heard", "aside")
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
    say_each(map(_row, found), columns([MIRROR_HEAD, *map(_cells, found)], NUMBERS) if found else "no mirrors")
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
        lost = "nothing is lost"
        if force and not heard_us:
            lost = "it had never heard of its source, so everything that the source has may be missing"
        elif force:
            lost = f"it was {counted(behind, 'message')} behind when it last heard of its source, and lacks what the "
            lost += f"source has confirmed since {time_text(heard_us)}"
        say(report, f"{stream} takes pushes here now, in {counted(len(before), 'partition')}; {lost}")

    with_client(run, node)


async def remove(client: StreamClient, stream: StreamArgument) -> None:
    """Stop following. The stream keeps its messages, and takes pushes from now on. The source is not told.

    Example: stream-node mirror remove orders
    """
    count = len((await _ask(client, "REMOVE", stream)).mirrors)
    say({"stream": stream, "partitions": count}, f"{stream} follows nobody now, and takes pushes")


async def _ask(client: StreamClient, action: str, stream: str, **fields: Any) -> MirrorResponse:
    return await client.session.ask(ADDRESS, MIRRORS, MirrorRequest(0, MirrorAction[action], stream, **fields))


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
