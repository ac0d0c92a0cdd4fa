"""The simulated users: publishers that retry until confirmed, and consumers that resume from a saved index."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

from index_service.protocol import INDEX, GetIndex, SaveIndex
from ockam.address import Address, local
from ockam.message import Message
from ockam.protocol import Protocol
from stream_service.names import stream_address
from stream_service.protocol import (
    CREATE,
    PULL,
    PUSH,
    CreateStream,
    PullRequest,
    PullResponse,
    PushConfirm,
    PushRequest,
    Status,
)
from tests.simulation.auditor import Auditor
from tests.simulation.network import Network

A = TypeVar("A")
RETRY_S = 2.0


class Client:
    """Asks until it gets an answer, since anything may be lost on the way."""

    def __init__(self, name: str, network: Network, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self._network = network
        self._address = local(f"sim_{name}")
        self._expected: Callable[[bytes], bool] = lambda payload: False
        self._arrived = trio.Event()
        network.join(self._address, self._receive)

    async def ask(self, to: Address, protocol: Protocol[Any, A], payload: bytes, accept: Callable[[A], bool]) -> A:
        """Send until an answer that `accept` takes has come; the answer."""
        answers: list[A] = []

        def take(answer: bytes) -> bool:
            if protocol.is_in(answer):
                decoded = protocol.decode_response(answer)
                if accept(decoded):
                    answers.append(decoded)
            return bool(answers)

        self._expected, self._arrived = take, trio.Event()
        while not answers:
            self.tell(to, payload)
            with trio.move_on_after(RETRY_S * self.rng.choice((0.5, 1.0, 1.0))):
                await self._arrived.wait()
        return answers[0]

    def tell(self, to: Address, payload: bytes) -> None:
        self._network.to_node(Message((to,), (self._address,), payload))

    def _receive(self, message: Message) -> None:
        if self._expected(message.payload):
            self._arrived.set()


def is_confirm(request_id: int, confirm: PushConfirm) -> bool:
    return confirm.request_id == request_id and confirm.status is Status.OK


def is_page(request_id: int, page: PullResponse) -> bool:
    return page.request_id == request_id


async def create(client: Client, stream: str) -> None:
    request = CREATE.encode_request(CreateStream(stream))
    await client.ask(local("stream_service"), CREATE, request, lambda created: created.stream_name == stream)


async def publish(client: Client, stream: str, count: int, auditor: Auditor) -> None:
    """Create the stream and push `count` messages, each again and again until it is confirmed."""
    await create(client, stream)
    for number in range(count):
        data = f"{client.name}:{number}".encode()
        request = PUSH.encode_request(PushRequest(number, data))
        confirm = await client.ask(stream_address(stream, 0), PUSH, request, partial(is_confirm, number))
        auditor.confirmed(stream, confirm.index, data)
        if client.rng.random() < 0.3:
            await trio.sleep(round(client.rng.random(), 1))


async def consume(client: Client, stream: str, auditor: Auditor) -> None:
    """Read to the end that the auditor knows, forgetting the position now and then and resuming from the saved one."""
    await create(client, stream)
    index_service, position = local("stream_index_service"), None
    request_id = 0
    while True:
        if position is None or client.rng.random() < 0.1:
            get = INDEX.encode_request(GetIndex(client.name, stream))
            answer = await client.ask(index_service, INDEX, get, lambda index: index.client_id == client.name)
            position = answer.index or 0
            auditor.saved_index_seen(client.name, stream, position)
        request_id += 1
        pull = PULL.encode_request(PullRequest(request_id, position, client.rng.choice((1, 3, 100))))
        page = await client.ask(stream_address(stream, 0), PULL, pull, partial(is_page, request_id))
        for message in page.messages:
            auditor.consumed(client.name, stream, message.index, message.data, position)
            position = message.index + 1
        if page.messages:
            client.tell(index_service, INDEX.encode_request(SaveIndex(client.name, stream, position)))
        elif auditor.all_read(client.name, stream):
            return
        else:
            await trio.sleep(1.0)
