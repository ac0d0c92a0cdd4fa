"""The commands `stream-node cluster status|drain`: show the members of a cluster, and empty one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stream_node.cli.options import not_empty
from stream_node.cli.output import columns, say
from stream_node.cli.values import CommandFailed

if TYPE_CHECKING:
    from ockam.protocol import Protocol
    from stream_client import StreamClient
    from stream_node.fleet.cluster.protocol import ClusterStatus

Q = TypeVar("Q")

HEAD = ("member", "address", "state", "shards")


async def status(client: StreamClient) -> None:
    """Print the members of the cluster, and how many of the 256 shards each one serves. Every member can be asked.

    A member is "alive", "leaving" (it gives its shards away) or "silent" (it has not written for five seconds).

    Example: stream-node cluster status --node db1:4000
    """
    from stream_node.fleet.cluster.protocol import STATUS, ClusterStatusRequest

    _say(await _ask(client, STATUS, ClusterStatusRequest(0)))


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
    from stream_node.fleet.cluster.protocol import DRAIN, DrainRequest

    _say(await _ask(client, DRAIN, DrainRequest(0, member, not undo)))


async def _ask(client: StreamClient, protocol: Protocol[Q, ClusterStatus], request: Q) -> ClusterStatus:
    from stream_client import RequestTimeout
    from stream_node.fleet.cluster.protocol import CLUSTER

    try:
        return await client.session.ask(str(CLUSTER), protocol, request)
    except RequestTimeout as error:
        raise CommandFailed(f"{error}; is it a member of a cluster (`serve --cluster`)?") from error


def _say(found: ClusterStatus) -> None:
    import msgspec

    members = [
        {
            "name": member.name,
            "address": member.address,
            "state": "silent" if not member.lives else "leaving" if member.leaves else "alive",
            "shards": member.shards,
        }
        for member in found.members
    ]
    unowned = sum(not shard.owner for shard in found.shards)
    report: dict[str, Any] = {
        "asked": found.name,
        "members": members,
        "unowned": unowned,
        "shards": msgspec.to_builtins(found.shards),
    }
    rows: Sequence[Sequence[str]] = [HEAD, *([str(value) for value in member.values()] for member in members)]
    say(report, [*columns(rows, frozenset({3})), *([f"{unowned} shards have no owner"] if unowned else [])])
