"""A node with an index service on a real database, in virtual time, and a client on the same node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio
import trio.testing

from index_service.extensions import LEASE, Lease, LeaseRequest, LeaseResponse
from index_service.limits import FAILURE_DELAY_S, LEASE_LIMITS, LeaseLimits
from index_service.worker import IndexService
from ockam.actors.address import local
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.protocol import ERROR, Protocol, is_failure
from ockam.transport.forwarding import RemoteStreams
from stream_storage.contract import Do, Operation, Session, ignore_done
from tests.support.databases import execute_text, open_database
from tests.support.storage.inline_runner import InlineRunner

SERVICE, ME = local("stream_index_service"), local("me")
Q = TypeVar("Q")
A = TypeVar("A")


class Sql(Operation):
    """One statement, such as one that takes a table away."""

    __slots__ = ("statement",)

    def __init__(self, statement: str) -> None:
        super().__init__(ignore_done)
        self.statement = statement

    def apply(self, session: Session) -> None:
        execute_text(session, self.statement)


class Inbox(Worker):
    """The client's own address."""

    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = payloads

    def handle(self, message: Message) -> None:
        self._payloads.append(message.payload)


class IndexNode:
    """Asks one request at a time; `ask` asserts that there is one answer."""

    def __init__(self, node: Node, service: IndexService, runner: InlineRunner) -> None:
        self.node = node
        self.service = service
        self.runner = runner
        self.payloads: list[bytes] = []
        node.register([ME], lambda: Inbox(self.payloads))

    def send(self, *payloads: bytes, origin: Origin = HERE) -> None:
        """Without waiting; all of them are one run."""
        self.node.send_run([Message((SERVICE,), (ME,), payload, origin) for payload in payloads])

    async def idle(self) -> list[bytes]:
        """Everything that has been answered, when nothing more is under way."""
        await self.runner.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        answered = list(self.payloads)
        self.payloads.clear()
        return answered

    async def ask(self, protocol: Protocol[Q, A], request: Q, *, origin: Origin = HERE) -> A:
        self.send(protocol.encode_request(request), origin=origin)
        (payload,) = await self.idle()
        assert not ERROR.is_in(payload), ERROR.decode_response(payload).reason
        return protocol.decode_response(payload)

    async def refused(self, protocol: Protocol[Q, Any], request: Q) -> str:
        """The reason of the error that this request gets at once."""
        self.send(protocol.encode_request(request))
        (payload,) = await self.idle()
        return ERROR.decode_response(payload).reason

    async def refused_now(self, protocol: Protocol[Q, Any], request: Q, *, origin: Origin = HERE) -> str:
        """The reason of the error that this request gets after a while, and that says that it can succeed later."""
        self.send(protocol.encode_request(request), origin=origin)
        assert await self.idle() == []
        await trio.sleep(FAILURE_DELAY_S)
        (payload,) = await self.idle()
        reason = ERROR.decode_response(payload).reason
        assert is_failure(reason), reason
        return reason

    async def execute(self, statement: str) -> None:
        operation = Sql(statement)
        self.runner.submit_write(operation)
        await self.runner.wait_idle()
        assert operation.error is None, operation.error

    async def read(self, work: Callable[[Session], Q]) -> Q:
        """What a function finds in the database."""
        operation = Do(work, ignore_done)
        self.runner.submit_read(operation)
        await self.runner.wait_idle()
        assert operation.error is None, operation.error
        return operation.result

    def member(self, member_id: str, partitions: int = 4, client_id: str = "c", stream_name: str = "s") -> Member:
        return Member(self, member_id, partitions, client_id, stream_name)


class Member:
    """One member; it holds what it was last answered, and gives up nothing by itself."""

    def __init__(
        self, index_node: IndexNode, member_id: str, partitions: int, client_id: str, stream_name: str
    ) -> None:
        self.index_node = index_node
        self.member_id = member_id
        self.partitions = partitions
        self.names = client_id, stream_name
        self.requests = 0
        self.leases: Sequence[Lease] = ()

    def request(self, holding: Sequence[Lease] | None = None, *, leave: bool = False) -> LeaseRequest:
        self.requests += 1
        held = list(self.leases if holding is None else holding)
        return LeaseRequest(self.requests, *self.names, self.member_id, self.partitions, held, leave)

    async def renew(self, *, without: Sequence[int] = ()) -> LeaseResponse:
        """Ask with what it holds, but for the partitions that it gives up."""
        holding = [lease for lease in self.leases if lease.partition not in without]
        answer = await self.index_node.ask(LEASE, self.request(holding))
        self.leases = answer.leases
        return answer

    async def leave(self) -> LeaseResponse:
        answer = await self.index_node.ask(LEASE, self.request(leave=True))
        self.leases = answer.leases
        return answer

    def fences(self) -> dict[int, int]:
        return {lease.partition: lease.fence for lease in self.leases}


@asynccontextmanager
async def index_node(
    directory: Path, limits: LeaseLimits = LEASE_LIMITS, remote_streams: RemoteStreams | None = None
) -> AsyncIterator[IndexNode]:
    """A node that ends as a killed one does when the block ends."""
    database = open_database(directory)
    try:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            runner = InlineRunner(database, nursery, batches=node)
            service = IndexService(
                runner, lambda: int(trio.current_time() * 1e6), lease_limits=limits, remote_streams=remote_streams
            )
            service.register(node)
            try:
                yield IndexNode(node, service, runner)
            finally:
                runner.crash()
                nursery.cancel_scope.cancel()
    finally:
        database.close()
