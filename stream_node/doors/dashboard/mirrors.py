"""The page of mirrors: the lag of each, fenced former sources, and forms that promote and remove mirrors."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import trio
from starlette.responses import Response

from ockam.identity.rules.rights import Right
from stream_client import ClientError, StreamClient
from stream_node.doors.dashboard.listing import show_rows
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage, check_typed
from stream_node.doors.dashboard.rendering import clock, number
from stream_node.doors.http.problems import problem_of
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
        shown=show_rows(page, states),
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
    fields = await page.form()
    name, force = fields.get("name", ""), fields.get("force") == "1"
    goes_on = force and fields.get("source_goes_on") == "1"
    if force:
        check_typed(fields, name)
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
    fields = await page.form()
    name = fields.get("name", "")
    check_typed(fields, name)
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
