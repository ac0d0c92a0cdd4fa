"""The pages for operators: access (rules, identities, refusals), connections, cluster, own workers, mirrors, and
exports (their runs and ranges, from the histories that exporters write into `export_folders`)."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple, TypeVar

import msgspec
import trio
from starlette.responses import Response

from ockam.files.parsing import ParseError, parse_json
from ockam.identity.rules.rights import EVERY_NAME, RIGHT_NAMES, Right
from stream_client import ClientError, StreamClient, StreamInfo
from stream_node.doors.dashboard.listing import ROWS, cut_rows, list_infos, permitted, shown_rows
from stream_node.doors.dashboard.page import CLUSTER_RESOURCE, OPERATOR, DashboardPage
from stream_node.doors.dashboard.rendering import clock, number
from stream_node.doors.http.problems import Problem, problem_of
from stream_node.fleet.cluster.member import PeerStatistics
from stream_node.fleet.cluster.protocol import CLUSTER, DRAIN, DrainRequest
from stream_node.fleet.cluster.view import UNOWNED
from stream_node.fleet.mirror.promotion import ASK_S_MAX, WAY_WITHOUT_FENCE
from stream_node.fleet.mirror.protocol import (
    ADDRESS,
    MIRRORS,
    MirrorAction,
    MirrorCondition,
    MirrorRequest,
    MirrorResponse,
    MirrorState,
)
from stream_node.fleet.worker_place import shares_shards
from stream_node.hosting.status import ADDRESS as WORKERS
from stream_node.hosting.status import OWN_WORKERS, OwnWorkersRequest
from stream_node.node.identity.access import AUDIT_FILE
from stream_node.node.node_connections import ADDRESS as NODE_CONNECTIONS
from stream_node.node.node_connections import CLOSE, CONNECTIONS, CloseRequest, ConnectionsRequest

T = TypeVar("T")

TAIL_BYTES = 256 * 1024
FIELDS = ("time", "identity", "peer", "right", "name", "reason")
"""The fields of a line that are shown. A line has only the fields that apply to its event."""
LINES_MAX = 50
REFUSALS = ("refused", "limited", "tls_refused", "http_refused", "token_refused", "channel_refused")
"""The beginnings of the events of refusals. An event such as `refused_more` stands for several of them."""


async def show_access(page: DashboardPage) -> Response:
    parts = page.call.parts
    if parts.authorizer is None:
        raise Problem(404, "no-rules", "this node has no rules (the setting access_rules): everybody may do everything")
    page.need(OPERATOR)
    file = Path(parts.config.audit_log or Path(parts.config.data_dir) / AUDIT_FILE)
    grants, sees_all = parts.authorizer.rules.grants(page.call.caller.identity), page.may(OPERATOR, EVERY_NAME)

    def concerns(prefix: str) -> bool:
        """Whether the user may see the state of anything whose name begins with `prefix`."""
        found = grants.find_next(OPERATOR, prefix)
        return found is not None and found.startswith(prefix)

    def is_shown(line: dict[str, Any]) -> bool:
        # A line without a name is about a peer, and of no stream.
        return sees_all or ("name" in line and page.may(OPERATOR, str(line["name"])))

    return page.show(
        "access.html",
        rules=[rule for rule in parts.authorizer.rules.rules if any(map(concerns, rule.on))],
        concerns=concerns,
        names_of=lambda rights: [name for name, right in RIGHT_NAMES.items() if right & rights],
        sees_all=sees_all,
        statistics=parts.authorizer.statistics(),
        connections=Counter(parts.tcp.statistics().identities).most_common(),
        limits=parts.node.usages.statistics(),
        refusals=await trio.to_thread.run_sync(read_refusals, file, is_shown),
    )


def read_refusals(file: Path, is_shown: Callable[[dict[str, Any]], bool] = lambda line: True) -> list[dict[str, Any]]:
    """Returns the newest refusals that may be shown. Lines that are not JSON are left out, as is a cut first line."""
    try:
        with file.open("rb") as source:
            # An audit log can have gigabytes; the last refusals are at its end.
            source.seek(max(0, os.fstat(source.fileno()).st_size - TAIL_BYTES))
            lines = source.read(TAIL_BYTES).splitlines()
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in reversed(lines):
        try:
            entry = parse_json(line)
        except ParseError:
            continue
        if isinstance(entry, dict) and str(entry.get("event", "")).startswith(REFUSALS) and is_shown(entry):
            found.append({field: "-" for field in FIELDS} | {"count": 1} | entry)
            if len(found) == LINES_MAX:
                break
    return found


SHOWN_MAX = 50


async def show_connections(page: DashboardPage) -> Response:
    page.need(OPERATOR, EVERY_NAME)
    async with page.client() as client:
        found = await client.session.ask(NODE_CONNECTIONS, CONNECTIONS, ConnectionsRequest(0, SHOWN_MAX))
    return page.show("connections.html", found=found, may_close=page.may(Right.ADMIN, EVERY_NAME))


async def close(page: DashboardPage) -> Response:
    who = page.get("who")
    async with page.client() as client:
        closed = (await client.session.ask(NODE_CONNECTIONS, CLOSE, CloseRequest(0, who, page.call.caller.peer))).closed
    if not closed:
        raise Problem(404, "no-such-connection", f"this node has no other connection of {who[:200]!r}")
    return page.go("/connections", done=f"{number(closed)} {'connection' if closed == 1 else 'connections'} closed.")


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
    """The mark of an owner in the picture of shards. letter: unique for each owner. colour: a number of a colour."""

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
    for index, owned_shard in enumerate(found.owners):
        owned.setdefault((owned_shard.owner, owned_shard.epoch), []).append(index)
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
    )


async def drain(page: DashboardPage) -> Response:
    """Makes a member give its shards away, if its name was typed again; or take shards again."""
    name, leaves = page.get("member"), page.get("act") != "undo"
    if leaves:
        page.check_typed(name)
    async with page.client() as client:
        await client.session.ask(str(CLUSTER), DRAIN, DrainRequest(0, name, leaves))
    return page.go("/cluster", done=f"{name} {'gives its shards away' if leaves else 'takes shards again'}.")


def shards_text(shards: Iterable[int]) -> str:
    """Returns ascending shards as hexadecimal digits, such as `03 07 a0..a4`."""
    # Within a run, a shard and its place in the list differ by the same number.
    runs = (
        [f"{shard:02x}" for _, shard in run] for _, run in groupby(enumerate(shards), lambda each: each[1] - each[0])
    )
    return " ".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else " ".join(run) for run in runs)


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


async def show_own_workers(page: DashboardPage) -> Response:
    page.need(OPERATOR, EVERY_NAME)
    async with page.client() as client:
        # In a cluster and with several processes, the node asks the others.
        found = (await client.session.ask(WORKERS, OWN_WORKERS, OwnWorkersRequest(0))).workers
    has_processes = any(each.process for each in found)
    return page.show("own_workers.html", shown=cut_rows(found, page.count("first", 0)), has_processes=has_processes)


PROMOTION_WAIT_S = 10.0
"""How long a browser waits for the end of a promotion, which goes on without it."""
FENCES = (MirrorCondition.FENCING, MirrorCondition.UNFENCED)
WAY_ON_THIS_PAGE = (
    "Stop its publishers, wait until nothing is missing here, and tick The source goes on in the form Take the place "
    "of a lost source"
)
"""The words of this page for the flags of `stream-node mirror promote` that the node names."""
POLL_S = 0.1


async def show_mirrors(page: DashboardPage) -> Response:
    # The page has the addresses of other nodes.
    page.need(OPERATOR)
    async with page.client() as client:
        states = (await _ask(client, MirrorRequest(0, MirrorAction.STATUS))).mirrors
    follows = [each for each in states if each.condition not in FENCES]
    return page.show(
        "mirrors.html",
        shown=cut_rows(states, page.count("first", 0)),
        following=sum(each.condition is MirrorCondition.FOLLOWING for each in follows),
        follow_count=len(follows),
        fence_count=len(states) - len(follows),
        ask_s=ASK_S_MAX,
        lag=sum(each.lag for each in follows),
        lag_s=max((each.lag_us / 1e6 for each in follows), default=0.0),
        aside=sum(each.aside_messages for each in states),
        promotable=_names(follows, lambda name: page.may(Right.ADMIN, name)),
        removable=_names(states, lambda name: page.may(Right.ADMIN, name)),
        readable=set(_names(states, lambda name: page.may(Right.READ, name), lambda each: each.aside_name)),
    )


async def promote(page: DashboardPage) -> Response:
    """Makes a mirror a primary. Without its source, the name must have been typed again."""
    name, force = page.get("name"), page.get("force") == "1"
    goes_on = force and page.get("source_goes_on") == "1"
    if force:
        page.check_typed(name)
    gives_up_s = trio.current_time() + PROMOTION_WAIT_S
    # The node reports the end of our own promotion by this number, and no earlier promotion has the number.
    promotion_id = 0 if force else 1 + secrets.randbelow(2**63)
    request = MirrorRequest(
        0, MirrorAction.PROMOTE, name, force=force, promotion_id=promotion_id, source_goes_on=goes_on
    )
    async with page.client() as client:
        while True:
            try:
                answer = await _ask(client, request)
            except ClientError as error:
                problem = problem_of(error)
                problem.detail = problem.detail.replace(WAY_WITHOUT_FENCE, WAY_ON_THIS_PAGE)
                raise problem from error
            if answer.done:
                break
            if trio.current_time() > gives_up_s:
                return page.go(
                    "/mirrors", done=f"{name} is being promoted. It is in the list below until that has ended."
                )
            await trio.sleep(POLL_S)
    text = _lost(answer.mirrors) if force else "Nothing is lost."
    return page.go("/mirrors", done=f"{name} takes pushes here now. {text}")


async def remove(page: DashboardPage) -> Response:
    """Makes a mirror stop following, or a primary stop fencing, if the name of the stream was typed again."""
    name = page.get("name")
    page.check_typed(name)
    async with page.client() as client:
        await _ask(client, MirrorRequest(0, MirrorAction.REMOVE, name))
    return page.go("/mirrors", done=f"{name} follows nobody now, and takes pushes.")


def _names(
    states: Sequence[MirrorState],
    is_meant: Callable[[str], bool],
    name_of: Callable[[MirrorState], str] = lambda each: each.stream_name,
) -> list[str]:
    return sorted(filter(is_meant, {name_of(each) for each in states} - {""}))


def _lost(before: Sequence[MirrorState]) -> str:
    """Says what a promotion without the source may have lost. before: the mirrors before the promotion."""
    behind = sum(each.lag for each in before)
    heard_us = min((each.heard_us for each in before), default=0)
    if not heard_us:
        return "It had never heard of its source, so everything that the source has may be missing."
    return (
        f"It was {number(behind)} {'message' if behind == 1 else 'messages'} behind when it last heard of its source, "
        f"and lacks what the source has confirmed since {clock(heard_us)}."
    )


async def _ask(client: StreamClient, request: MirrorRequest) -> MirrorResponse:
    return await client.session.ask(ADDRESS, MIRRORS, request)


RANGES_MAX = 1_000


async def show_exports(page: DashboardPage) -> Response:
    # For each folder, its view with the last run, or the reason why its history cannot be read.
    rows: list[tuple[str, Any, str]] = []
    for folder in _folders(page):
        try:
            rows.append((folder, await _read(folder, lambda history: history.load_view(0, 1)), ""))
        except Problem as problem:
            rows.append((folder, None, problem.detail))
    return page.show("exports.html", rows=rows)


async def show_export(page: DashboardPage) -> Response:
    folder = _folder(page)
    first = page.count("runs", 0)
    view = await _read(folder, lambda history: history.load_view(first, ROWS))
    try:
        partitions, problem = await _read(folder, lambda history: history.load_partitions()), ""
    except Problem as found:
        # The page shows the runs even if the partitions cannot be read.
        partitions, problem = [], found.detail
    shown, infos = cut_rows(partitions, page.count("first", 0)), {}
    async with page.client() as client:
        for name in {each.of.stream for each in shown.rows}:
            infos.update({(name, each.partition): each for each in await permitted(list_infos(client, name))})
    rows = [(each, _waiting(each, infos)) for each in shown.rows]
    return page.show(
        "export.html",
        folder=folder,
        view=view,
        partitions=msgspec.structs.replace(shown, rows=rows),
        problem=problem,
        runs=shown_rows(list(view.runs), first, view.run_count),
    )


async def show_run(page: DashboardPage) -> Response:
    folder, number = _folder(page), page.count("run", 0)
    found = await _read(folder, lambda history: history.load_run(number, RANGES_MAX + 1))
    if found is None:
        raise Problem(404, "no-such-run", f"the history of {folder} has no run {number}")
    run, ranges = found
    is_cut = len(ranges) > RANGES_MAX
    return page.show("export_run.html", folder=folder, run=run, ranges=ranges[:RANGES_MAX], is_cut=is_cut)


def _folders(page: DashboardPage) -> tuple[str, ...]:
    folders = page.call.parts.config.export_folders
    if not folders:
        raise Problem(404, "no-exports", "this node shows no exports (the setting export_folders)")
    # Exports have the names of all streams, and paths of this machine.
    page.need(OPERATOR, EVERY_NAME)
    return folders


def _folder(page: DashboardPage) -> str:
    """Returns the folder that the user asks for. Only the folders of the setting are ever opened."""
    wanted = page.get("folder")
    if wanted not in _folders(page):
        raise Problem(404, "no-such-export", f"the setting export_folders does not name {wanted[:200]!r}")
    return wanted


async def _read(folder: str, read: Callable[[Any], T]) -> T:
    # A node loads this one module of the exporter, and only for these pages. It needs neither Spark nor pyarrow.
    from spark_export.exporter.history import FILE, ExportHistory
    from spark_export.tables.errors import ExportError

    def load() -> T:
        named = Path(folder)
        return read(ExportHistory(named if named.is_file() else named / FILE))

    try:
        return await trio.to_thread.run_sync(load, abandon_on_cancel=True)
    except (ExportError, OSError) as error:
        raise Problem(503, "history-not-read", str(error)) from error


def _waiting(exported: Any, infos: dict[tuple[str, int], StreamInfo]) -> int | None:
    """Returns how many messages the export lacks. None: the partition is deleted, made again, or hidden."""
    info = infos.get(exported.of.place)
    # A stream that was deleted and made again has another time of creation, and its indexes begin again.
    if info is None or info.created_us != exported.of.created_us:
        return None
    end: int = exported.end
    return max(0, info.next_index - max(end, info.first_index))
