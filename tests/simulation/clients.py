"""The simulated users: what asks until it is answered, and consumers that resume from a saved index."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

from index_service.protocol import INDEX, GetIndex, SaveIndex
from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.protocol import Protocol
from stream_service.extensions import BATCHED, RICH_PULL, FromIndex, RichPage, RichPull
from stream_service.names import stream_address
from stream_service.protocol import CREATE, PULL, CreateStream, PullRequest, PullResponse
from tests.simulation.auditor import Auditor
from tests.simulation.network import Network

A = TypeVar("A")
RETRY_S = 2.0


class Client:
    """Asks until it gets an answer, since anything may be lost on the way.

    batched: whether its address says that it understands the answer to several pushes.
    in_order: what it sends keeps its order on the way to the node, though it can be lost or doubled.
    """

    def __init__(
        self, name: str, network: Network, rng: random.Random, *, in_order: bool = False, batched: bool = False
    ) -> None:
        self.name = name
        self.rng = rng
        self.address = local(f"{BATCHED.decode() if batched else ''}sim_{name}")
        self._network = network
        self._in_order = in_order
        self._hear: Callable[[bytes], None] = lambda payload: None
        network.join(self.address, lambda message: self._hear(message.payload))

    def listen(self, hear: Callable[[bytes], None]) -> None:
        """From now on, call this with each payload that comes."""
        self._hear = hear

    async def ask(self, to: Address, protocol: Protocol[Any, A], payload: bytes, accept: Callable[[A], bool]) -> A:
        """Send until an answer that `accept` takes has come; the answer."""
        answers: list[A] = []
        arrived = trio.Event()

        def take(answer: bytes) -> None:
            if protocol.is_in(answer) and accept(decoded := protocol.decode_response(answer)):
                answers.append(decoded)
                arrived.set()

        self.listen(take)
        while not answers:
            self.tell(to, payload)
            with trio.move_on_after(self.patience_s()):
                await arrived.wait()
        return answers[0]

    def tell(self, to: Address, payload: bytes) -> None:
        self._network.to_node(Message((to,), (self.address,), payload), in_order=self._in_order)

    def patience_s(self) -> float:
        """How long to wait this time; often the same, so that users come at one moment."""
        return RETRY_S * self.rng.choice((0.5, 1.0, 1.0))


def is_page(request_id: int, page: PullResponse | RichPage) -> bool:
    return page.request_id == request_id


async def create(client: Client, stream: str) -> None:
    request = CREATE.encode_request(CreateStream(stream))
    await client.ask(local("stream_service"), CREATE, request, lambda created: created.stream_name == stream)


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
        pull = PullRequest(request_id, position, client.rng.choice((1, 3, 100)))
        address = stream_address(stream, 0)
        page: PullResponse | RichPage
        if client.rng.random() < 0.5:
            payload = PULL.encode_request(pull)
            page = await client.ask(address, PULL, payload, partial(is_page, request_id))
            auditor.pulled(client.name, client.address, stream, pull, page)
        else:
            parked = RichPull(request_id, FromIndex(position), pull.limit, client.rng.choice((0, 700, 5_000)))
            payload = RICH_PULL.encode_request(parked)
            page = await client.ask(address, RICH_PULL, payload, partial(is_page, request_id))
            auditor.pulled_rich(client.name, client.address, stream, pull, page)
        if page.messages:
            position = page.messages[-1].index + 1
            client.tell(index_service, INDEX.encode_request(SaveIndex(client.name, stream, position)))
        elif auditor.all_read(client.name, stream):
            return
        else:
            await trio.sleep(1.0)
