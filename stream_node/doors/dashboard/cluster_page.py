"""The page of the cluster as this member has read it: members, shards, hand-overs, and forms that drain a member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from string import ascii_uppercase
from typing import NamedTuple

from starlette.responses import Response

from ockam.identity.rules.rights import Right
from stream_node.doors.dashboard.page import CLUSTER_RESOURCE, DashboardPage, check_typed
from stream_node.doors.http.problems import Problem
from stream_node.fleet.cluster.member import PeerStatistics
from stream_node.fleet.cluster.protocol import CLUSTER, DRAIN, DrainRequest
from stream_node.fleet.cluster.view import UNOWNED
from stream_node.fleet.worker_place import shares_shards

COLOURS = 8
"""The number of colours of the picture. With more owners, two of them have the same colour and different letters."""
WIDTH = 16
"""The number of shards in a row of the picture: those with the same first hexadecimal digit."""
REASONS = {
    "free": "nobody owned them",
    "joined": "{after} has joined, or takes shards again",
    "left": "{before} stops, or is drained",
    "fenced": "{before} was silent and is fenced",
}


class OwnerMark(NamedTuple):
    """How the picture shows an owner. letter: unique for each owner. colour: the number of its colour."""

    letter: str
    colour: int


async def show_cluster(page: DashboardPage) -> Response:
    parts = page.call.parts
    found = parts.statistics().cluster if shares_shards(parts.config) else None
    if found is None:
        detail = "this node shares its streams with no other process (the settings cluster and workers)"
        raise Problem(404, "no-cluster", detail)
    # The page has the addresses of other nodes.
    page.need(Right.OPERATE, CLUSTER_RESOURCE)
    waiting, waiting_by_owner = found.router.waiting_by_shard, Counter[str]()
    for shard, each in waiting.items():
        waiting_by_owner[found.owners[shard].owner] += each.messages
    owned: dict[tuple[str, int], list[int]] = {}
    for number, owned_shard in enumerate(found.owners):
        owned.setdefault((owned_shard.owner, owned_shard.epoch), []).append(number)
    return page.show(
        "cluster.html",
        member=found,
        marks=owner_marks({*(peer.name for peer in found.peers), *(shard.owner for shard in found.owners)}),
        state_of=state_of,
        shards_text=shards_text,
        waiting=waiting,
        waiting_by_owner=waiting_by_owner,
        digits=[f"{digit:x}" for digit in range(WIDTH)],
        unowned=sum(shard.owner == UNOWNED for shard in found.owners),
        unowned_s=max(found.unowned_s.values(), default=0.0),
        waits_s=max((each.waits_s for each in waiting.values()), default=0.0),
        owned=sorted(owned.items()),
        reasons=REASONS,
        may_drain=not found.is_fixed,
    )


async def drain(page: DashboardPage) -> Response:
    """Makes a member give its shards away, if its name was typed again; or take shards again."""
    fields = await page.form()
    name, leaves = fields.get("member", ""), fields.get("act") != "undo"
    if leaves:
        check_typed(fields, name)
    async with page.client() as client:
        await client.session.ask(str(CLUSTER), DRAIN, DrainRequest(0, name, leaves))
    return page.go("/cluster", done=f"{name} {'gives its shards away' if leaves else 'takes shards again'}.")


def shards_text(shards: Iterable[int]) -> str:
    """Returns ascending shards as hexadecimal digits, such as `03 07 a0..a4`."""
    runs = (list(run) for _, run in groupby(enumerate(shards), lambda each: each[1] - each[0]))
    return " ".join(_run_text([number for _, number in run]) for run in runs)


def _run_text(run: Sequence[int]) -> str:
    return f"{run[0]:02x}..{run[-1]:02x}" if len(run) > 2 else " ".join(f"{number:02x}" for number in run)


def owner_marks(names: Iterable[str]) -> dict[str, OwnerMark]:
    owners = sorted(set(names) - {UNOWNED})
    letters = len(ascii_uppercase)
    return {
        name: OwnerMark(
            ascii_uppercase[number % letters] + (str(number // letters) if number >= letters else ""), number % COLOURS
        )
        for number, name in enumerate(owners)
    }


def state_of(peer: PeerStatistics) -> str:
    if peer.is_fenced:
        return "fenced"
    return "silent" if not peer.lives else "leaves" if peer.leaves else "lives"
