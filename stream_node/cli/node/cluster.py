"""The commands `stream-node cluster` (members of a cluster) and `connections` (open connections of a node)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stream_node.cli.client import ask_newer, with_client
from stream_node.cli.options import ANY_NODE, RUNS, NodeOptions, not_empty
from stream_node.cli.output import columns, counted, say
from stream_node.cli.values import CommandFailed, UsageError

if TYPE_CHECKING or RUNS:
    import msgspec

    from ockam.protocol import Protocol
    from stream_client import RequestTimeout, StreamClient
    from stream_node.fleet.cluster.protocol import (
        CLUSTER,
        DRAIN,
        STATUS,
        ClusterStatus,
        ClusterStatusRequest,
        DrainRequest,
    )
    from stream_node.node.node_connections import (
        ADDRESS,
        CLOSE,
        CONNECTIONS,
        CloseRequest,
        ConnectionsRequest,
        OpenConnection,
        PartyTraffic,
    )

Q = TypeVar("Q")

HEAD = ("member", "address", "state", "shards")


async def status(client: StreamClient) -> None:
    """Print the members of the cluster, and how many of the 256 shards each one serves. Every member can be asked.

    A member is "alive", "leaving" (it gives its shards away) or "silent" (it has not written for five seconds).

    Example: stream-node cluster status --node db1:4000
    """
    await _print_members(client, STATUS, ClusterStatusRequest(0))


async def drain(
    client: StreamClient,
    member: Annotated[str, typer.Argument(callback=not_empty), "The name of the member."],
    undo: Annotated[bool, "Let the member take shards again."] = False,
) -> None:
    """Make a member give all its shards to the others. It keeps running, and forwards the messages of its clients.

    A member that is stopped does the same by itself. So this command is for a machine that is to do less, or that is
    stopped later. Print the members as `cluster status` does.

    Example: stream-node cluster drain db1
    """
    await _print_members(client, DRAIN, DrainRequest(0, member, not undo))


async def _print_members(client: StreamClient, protocol: Protocol[Q, ClusterStatus], request: Q) -> None:
    try:
        found = await client.session.ask(str(CLUSTER), protocol, request)
    except RequestTimeout as error:
        raise CommandFailed(f"{error}; is it a member of a cluster (`serve --cluster`)?") from error
    members = []
    for member in found.members:
        state = "silent" if not member.lives else "leaving" if member.leaves else "alive"
        members.append({"name": member.name, "address": member.address, "state": state, "shards": member.shards})
    unowned = sum(not shard.owner for shard in found.shards)
    report: dict[str, Any] = {"asked": found.name, "members": members, "unowned": unowned}
    rows: Sequence[Sequence[str]] = [HEAD, *(tuple(map(str, member.values())) for member in members)]
    lines = [*columns(rows, frozenset({3})), *([f"{unowned} shards have no owner"] if unowned else [])]
    say(report | {"shards": msgspec.to_builtins(found.shards)}, lines)


HEADS = ("identity", "peer", "in/s", "out/s", "bytes in", "bytes out", "unsent")
FIGURES = frozenset(range(2, len(HEADS)))


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
            closed = (await ask_newer(client, ADDRESS, CLOSE, CloseRequest(0, close), "close connections")).closed
            if not closed:
                raise CommandFailed(f"the node has no other connection of {close!r}; run connections to see them")
            say({"who": close, "closed": closed}, f"{counted(closed, 'connection')} closed")
            return
        found = await ask_newer(client, ADDRESS, CONNECTIONS, ConnectionsRequest(0, limit), "tell its connections")
        rows: list[tuple[str, ...]] = [HEADS]
        rows += [(each.party, f"({each.connections} open)", *_figures(each), "") for each in found.parties]
        rows += [(each.identity, each.peer, *_figures(each), f"{each.backlog_bytes:,}") for each in found.connections]
        report = {part: msgspec.to_builtins(getattr(found, part)) for part in ("total", "parties", "connections")}
        left_out = found.total - len(found.connections)
        more = [f"and {counted(left_out, 'more connection')}; --limit prints more"] if left_out else []
        say(report, [*columns(rows, FIGURES), *more])

    with_client(run, node)


def _figures(each: PartyTraffic | OpenConnection) -> Iterator[str]:
    figures = each.received_bytes_s, each.sent_bytes_s, each.received_bytes, each.sent_bytes
    return (f"{figure:,}" for figure in figures)
