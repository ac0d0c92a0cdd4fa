"""What the tests of mirrors share: requests of an operator, and the contents of a stream, read by pulls of a client."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import trio

from ockam.actors.address import Route, local
from ockam.protocol import ERROR
from stream_node.fleet.mirror.protocol import (
    ADDRESS,
    MIRRORS,
    MirrorAction,
    MirrorCondition,
    MirrorRequest,
    MirrorResponse,
    MirrorState,
)
from stream_service.extensions import RICH_PULL, FromIndex, RichMessage, RichPull
from stream_service.mirroring import ROLE, Role, RoleRequest
from stream_service.names import stream_address
from tests.support.rich import ask
from tests.support.served import PATIENCE_S
from tests.support.stream_peer import StreamPeer, stream_peer

PROMOTION_IDS = itertools.count(1)


class MirrorRefused(Exception):
    """The node has answered a request about mirrors with an error."""


async def request(
    address: str,
    action: MirrorAction,
    name: str = "",
    source: str = "",
    *,
    source_name: str = "",
    force: bool = False,
    source_goes_on: bool = False,
) -> MirrorResponse:
    """Sends a request of an operator. A promotion is asked for until it is done. Raises MirrorRefused."""
    plans = action is MirrorAction.PROMOTE and not force
    promotion_id = next(PROMOTION_IDS) if plans else 0
    asked = MirrorRequest(1, action, name, source, source_name, force, promotion_id, source_goes_on)
    with trio.fail_after(4 * PATIENCE_S):
        while not (answer := await ask_once(address, asked)).done:
            await trio.sleep(0.02)
    return answer


async def ask_once(address: str, asked: MirrorRequest) -> MirrorResponse:
    """Sends a request of an operator, and returns its answer. Raises MirrorRefused."""
    async with stream_peer(address) as peer:
        payload = (await peer.ask((local(ADDRESS),), MIRRORS.encode_request(asked))).payload
    if ERROR.is_in(payload):
        raise MirrorRefused(ERROR.decode_response(payload).reason)
    return MIRRORS.decode_response(payload)


async def add(address: str, name: str, source: str, *, source_name: str = "", force: bool = False) -> None:
    await request(address, MirrorAction.ADD, name, source, source_name=source_name, force=force)


async def states(address: str, name: str = "") -> list[MirrorState]:
    return (await request(address, MirrorAction.STATUS, name)).mirrors


async def wait_for(address: str, condition: Callable[[list[MirrorState]], object], name: str = "") -> list[MirrorState]:
    """Asks for the states until they meet the condition. Raises trio.TooSlowError."""
    with trio.fail_after(PATIENCE_S):
        while True:
            found = await states(address, name)
            if condition(found):
                return found
            await trio.sleep(0.02)


def follows_to(*ends: int) -> Callable[[list[MirrorState]], bool]:
    """Whether the partitions follow their source, and have these ends."""
    return lambda found: (
        [(each.condition, each.next_index, each.lag) for each in found]
        == [(MirrorCondition.FOLLOWING, end, 0) for end in ends]
    )


def is_in(condition: MirrorCondition) -> Callable[[list[MirrorState]], bool]:
    return lambda found: bool(found) and all(each.condition is condition for each in found)


async def role_of(address: str, name: str = "s") -> Role:
    async with stream_peer(address) as peer:
        return (await ask(peer, (stream_address(name, 0),), ROLE, RoleRequest(1, None, False))).role


async def contents(address: str, name: str, partition: int = 0, start: int = 0) -> tuple[int, int, list[RichMessage]]:
    """The first index, the next index and the messages of a stream from `start` on, by pulls of a client."""
    route: Route = (stream_address(name, partition),)
    async with stream_peer(address) as peer:
        return await pulled(peer, route, start)


async def pulled(peer: StreamPeer, route: Route, start: int = 0) -> tuple[int, int, list[RichMessage]]:
    messages: list[RichMessage] = []
    index = start
    while True:
        payload = (await peer.ask(route, RICH_PULL.encode_request(RichPull(1, FromIndex(index), 1_000, 0)))).payload
        assert RICH_PULL.is_in(payload), ERROR.decode_response(payload).reason
        page = RICH_PULL.decode_response(payload)
        messages += page.messages
        index = page.resume_index
        if index >= page.next_index:
            return page.first_index, page.next_index, messages
