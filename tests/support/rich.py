"""Requests of our own stream protocols and their answers, over a raw peer."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeVar

from ockam.actors.address import Route
from ockam.protocol import ERROR, Protocol
from stream_service.extensions import (
    INFO,
    RICH_PULL,
    RICH_PUSH,
    Header,
    InfoRequest,
    PackedPage,
    RichConfirm,
    RichMessage,
    RichPage,
    RichPull,
    RichPush,
    Start,
    StreamInfo,
)
from stream_service.extensions import Sequence as PushSequence
from tests.support.stream_peer import StreamPeer

Q = TypeVar("Q")
A = TypeVar("A")


async def ask(peer: StreamPeer, route: Route, protocol: Protocol[Q, A], request: Q) -> A:
    return protocol.decode_response((await peer.ask(route, protocol.encode_request(request))).payload)


async def refusal(peer: StreamPeer, route: Route, protocol: Protocol[Q, A], request: Q) -> str:
    return ERROR.decode_response((await peer.ask(route, protocol.encode_request(request))).payload).reason


async def push(
    peer: StreamPeer,
    route: Route,
    data: bytes,
    *,
    key: bytes | None = None,
    headers: Sequence[Header] = (),
    sequence: tuple[bytes, int] | None = None,
) -> RichConfirm:
    placed = PushSequence(*sequence) if sequence is not None else None
    return await ask(peer, route, RICH_PUSH, RichPush(1, data, key, list(headers), placed))


async def pull(peer: StreamPeer, route: Route, start: Start, limit: int = 100, wait_ms: int = 0) -> RichPage:
    return await ask(peer, route, RICH_PULL, RichPull(1, start, limit, wait_ms))


async def info(peer: StreamPeer, route: Route) -> StreamInfo:
    return (await ask(peer, route, INFO, InfoRequest(1))).info


def data_of(page: RichPage) -> list[bytes]:
    return [message.data for message in page.messages]


def messages_of(page: PackedPage) -> list[RichMessage] | None:
    """The slow way to the messages of a packed page: cut one by one. None for columns that do not fit together."""
    if len(page.sizes) % 4 or len(page.times_us) % 8:
        return None
    sizes = [each[0] for each in struct.iter_unpack("<I", page.sizes)]
    times = [each[0] for each in struct.iter_unpack("<Q", page.times_us)]
    if len(times) not in ({1, len(sizes)} if sizes else {0}) or sum(sizes) != len(page.messages):
        return None
    if page.start + len(sizes) > 1 << 64 or any(each.at >= len(sizes) for each in page.beside):
        return None
    messages, at = [], 0
    for number, size in enumerate(sizes):
        key, headers = None, list[Header]()
        for each in page.beside:
            if each.at == number:
                key, headers = each.key, each.headers
        time_us = times[-1 if len(times) == 1 else number]
        messages.append(RichMessage(page.start + number, time_us, key, headers, page.messages[at : at + size]))
        at += size
    return messages
