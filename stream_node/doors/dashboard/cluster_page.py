"""The page of the cluster: members, owners of shards, waiting messages, hand-overs, and forms that drain a member.
The page shows the cluster as this member has read it. It asks no other member."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from string import ascii_uppercase
from typing import Any, NamedTuple

from starlette.responses import Response

from ockam.identity.rules.rights import Right
from stream_node.doors.dashboard.page import CLUSTER_RESOURCE, DashboardPage, check_typed
from stream_node.doors.http.problems import Problem
from stream_node.fleet.cluster.protocol import CLUSTER, DRAIN, DrainRequest
from stream_node.fleet.cluster.statistics import MemberStatistics, PeerStatistics
from stream_node.fleet.cluster.view import UNOWNED
from stream_node.fleet.worker_place import shares_shards

COLOURS = 8
"""The number of colours of the picture. With more owners, two of them have the same colour and different letters."""
WIDTH = 16
"""The number of shards in a row of the picture: those with the same first hexadecimal digit."""
STATES = ("lives", "leaves", "silent", "fenced")
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


class MemberRow(NamedTuple):
    """A member in the list. state: one of STATES. waiting: the messages that wait here for its shards."""

    peer: PeerStatistics
    mark: OwnerMark
    state: str
    is_here: bool
    is_linked: bool
    sent: int
    waiting: int


class ShardCell(NamedTuple):
    """A shard in the picture. mark: None without an owner. waiting: the messages that wait for it."""

    number: int
    owner: str
    epoch: int
    mark: OwnerMark | None
    waiting: int


class OwnedRow(NamedTuple):
    """The shards that have the same owner and epoch. size: how many they are. shards: their numbers as text."""

    owner: str
    epoch: int
    size: int
    shards: str


class HandOverRow(NamedTuple):
    """A hand-over in the list, see `stream_node.fleet.cluster.hand_overs.HandOver`. size, shards: as in OwnedRow."""

    time_us: int
    size: int
    shards: str
    before: str
    after: str
    why: str


async def show_cluster(page: DashboardPage) -> Response:
    return page.show("cluster.html", active="cluster", **_values(page))


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
    """Returns ascending numbers of shards as two hexadecimal digits each, such as `03 07 a0..a4`."""
    runs = (list(run) for _, run in groupby(enumerate(shards), lambda each: each[1] - each[0]))
    return " ".join(_run_text([number for _, number in run]) for run in runs)


def _run_text(run: Sequence[int]) -> str:
    return f"{run[0]:02x}..{run[-1]:02x}" if len(run) > 2 else " ".join(f"{number:02x}" for number in run)


def _values(page: DashboardPage) -> dict[str, Any]:
    parts = page.call.parts
    found = parts.statistics().cluster if shares_shards(parts.config) else None
    if found is None:
        detail = "this node shares its streams with no other process (the settings cluster and workers)"
        raise Problem(404, "no-cluster", detail)
    # The page has the addresses of other nodes.
    page.need(Right.OPERATE, CLUSTER_RESOURCE)
    marks = owner_marks({*(peer.name for peer in found.peers), *(shard.owner for shard in found.owners)})
    cells = _cells(found, marks)
    return {
        "member": found,
        "rows": _members(found, marks),
        "lines": [cells[first : first + WIDTH] for first in range(0, len(cells), WIDTH)],
        "digits": [f"{digit:x}" for digit in range(WIDTH)],
        "unowned": sum(cell.mark is None for cell in cells),
        "unowned_s": max(found.unowned_s.values(), default=0.0),
        "waits_s": max((each.waits_s for each in found.router.waiting_by_shard.values()), default=0.0),
        "owned": _owned(found),
        "hand_overs": [
            HandOverRow(
                each.time_us,
                len(each.shards),
                shards_text(each.shards),
                each.before,
                each.after,
                REASONS[each.reason].format(before=each.before, after=each.after),
            )
            for each in found.hand_overs
        ],
        "may_drain": not found.is_fixed,
    }


def owner_marks(names: Iterable[str]) -> dict[str, OwnerMark]:
    owners = sorted(set(names) - {UNOWNED})
    letters = len(ascii_uppercase)
    return {
        name: OwnerMark(
            ascii_uppercase[number % letters] + (str(number // letters) if number >= letters else ""), number % COLOURS
        )
        for number, name in enumerate(owners)
    }


def _members(found: MemberStatistics, marks: dict[str, OwnerMark]) -> list[MemberRow]:
    router, waiting = found.router, Counter[str]()
    for shard, each in router.waiting_by_shard.items():
        waiting[found.owners[shard].owner] += each.messages
    return [
        MemberRow(
            peer,
            marks[peer.name],
            state_of(peer),
            peer.name == found.name,
            peer.name in router.linked,
            router.sent.get(peer.name, 0),
            waiting[peer.name],
        )
        for peer in found.peers
    ]


def state_of(peer: PeerStatistics) -> str:
    if peer.is_fenced:
        return "fenced"
    return "silent" if not peer.lives else "leaves" if peer.leaves else "lives"


def _cells(found: MemberStatistics, marks: dict[str, OwnerMark]) -> list[ShardCell]:
    waiting = found.router.waiting_by_shard
    return [
        ShardCell(
            number,
            shard.owner,
            shard.epoch,
            marks.get(shard.owner),
            waiting[number].messages if number in waiting else 0,
        )
        for number, shard in enumerate(found.owners)
    ]


def _owned(found: MemberStatistics) -> list[OwnedRow]:
    owned: dict[tuple[str, int], list[int]] = {}
    for number, shard in enumerate(found.owners):
        owned.setdefault((shard.owner, shard.epoch), []).append(number)
    return [
        OwnedRow(owner, epoch, len(shards), shards_text(shards)) for (owner, epoch), shards in sorted(owned.items())
    ]
