"""The pages of access (rules, identities, refusals) and of connections (the busiest ones, and a form to close one)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from starlette.responses import Response

from ockam.files.parsing import ParseError, parse_json
from ockam.identity.rules.rights import EVERY_NAME, RIGHT_NAMES, Right
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.dashboard.rendering import number
from stream_node.doors.http.problems import Problem
from stream_node.node.identity.access import AUDIT_FILE
from stream_node.node.node_connections import ADDRESS, CLOSE, CONNECTIONS, CloseRequest, ConnectionsRequest

TAIL_BYTES = 256 * 1024
"""How much of the end of the audit log is read."""
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
        rules=[
            {
                "name": rule.name,
                "who": ["everybody else"] if rule.keeper is not None else list(rule.who),
                "may": _names(rule.may),
                "may_not": _names(rule.may_not),
                "on": ["any name" if not name else f"{name}…" for name in rule.on if concerns(name)],
            }
            for rule in parts.authorizer.rules.rules
            if any(map(concerns, rule.on))
        ],
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


def _names(rights: Right) -> list[str]:
    return [name for name, right in RIGHT_NAMES.items() if right & rights]


SHOWN_MAX = 50


async def show_connections(page: DashboardPage) -> Response:
    page.need(OPERATOR, EVERY_NAME)
    async with page.client() as client:
        found = await client.session.ask(ADDRESS, CONNECTIONS, ConnectionsRequest(0, SHOWN_MAX))
    return page.show(
        "connections.html",
        total=found.total,
        connections=found.connections,
        parties=found.parties,
        may_close=page.may(Right.ADMIN, EVERY_NAME),
    )


async def close(page: DashboardPage) -> Response:
    who = (await page.form()).get("who", "")
    async with page.client() as client:
        closed = (await client.session.ask(ADDRESS, CLOSE, CloseRequest(0, who, page.call.caller.peer.address))).closed
    if not closed:
        raise Problem(404, "no-such-connection", f"this node has no other connection of {who[:200]!r}")
    return page.go("/connections", done=f"{number(closed)} {'connection' if closed == 1 else 'connections'} closed.")
