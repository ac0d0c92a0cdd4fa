"""A node that is only a function of the message: for tests of what a client sends, and what it makes of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import pytest
import trio

from ockam.actors.address import Route, local
from ockam.actors.message import HERE, Message
from ockam.transport.frames import FrameReader, FrameWriter
from ockam.transport.wire_head import HEAD

Answers: TypeAlias = Iterable[tuple[Route, bytes]]
"""Return route and payload of each answer to one message."""


class HangUp(Exception):
    """Raised by the function: end this connection without an answer."""


@asynccontextmanager
async def fake_node(answer: Callable[[Message], Answers]) -> AsyncIterator[str]:
    """The address of a node (head framing) that answers each message, of any connection, with what `answer` says."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, partial(_serve, answer), 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        host, port = listener.socket.getsockname()
        yield f"{host}:{port}"
        nursery.cancel_scope.cancel()


async def _serve(answer: Callable[[Message], Answers], stream: trio.SocketStream) -> None:
    reader, writer = FrameReader(HEAD, HERE), FrameWriter(HEAD)
    hello = HEAD.hello
    await stream.send_all(hello)
    try:
        while data := bytes(await stream.receive_some()):
            data, hello = data.removeprefix(hello), b""
            answers = [
                Message((local("-"), *message.return_route), route, payload)
                for message in reader.feed(data)
                for route, payload in answer(message)
            ]
            await stream.send_all(writer.encode(answers, lambda error: pytest.fail(str(error)))[1])
    except (HangUp, trio.BrokenResourceError):
        return
