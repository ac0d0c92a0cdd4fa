"""One process of a member of a cluster, in virtual time: a whole node, without its sockets and its threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from ockam.actors.address import Address, local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.transport.forwarding import CONNECTION_PREFIX, OpenRequests
from stream_node.fleet.cluster.member import ClusterMember
from stream_node.fleet.cluster.protocol import CLUSTER
from stream_node.fleet.cluster.router import Link, Router
from stream_node.fleet.cluster.tables import join, leave, with_view
from stream_node.fleet.cluster.worker import ClusterWorker
from stream_node.fleet.cluster_services import StreamShards
from stream_node.hosting.hosted import HostedWorkers
from stream_node.node.config import Config
from stream_node.node.services import Services
from stream_service.stored import LIST_EXTRAS
from stream_storage.commit import fail_all
from stream_storage.contract import Operation
from stream_storage.errors import CommitUnsettled, DatabaseLost, IndexConflict, StorageError
from stream_storage.statement import Values
from tests.simulation.auditor import BrokenPromise
from tests.stream_node.fleet.cluster.pipes import MemberEnd
from tests.support.storage.inline_runner import InlineRunner
from tests.support.storage.memory import MemoryDatabase, MemorySession, SharedMemoryDatabase

LEASE_TTL_S = 4.0
LEAVE_S = 30.0

NO_TCP: Any = None
"""A member without workers of the operator needs no transport for their clients."""


class ReadSession(MemorySession):
    """A session that reads, and finds sequence numbers: in memory, no table has the messages."""

    def execute(self, statement: str, values: Values = ()) -> Any:
        if statement != LIST_EXTRAS:
            return super().execute(statement, values)
        assert isinstance(values, tuple)
        stream_id, index, end = values
        found = self.log.read(stream_id, index, 10**6, 10**9)
        return [(row[0], row[4]) for row in found if row[0] < end and row[4] is not None]


class Source(SharedMemoryDatabase):
    """The database as one process has it."""

    def __init__(self, database: MemoryDatabase, token: str) -> None:
        super().__init__(database, token)
        self._memory = database

    def read_session(self) -> ReadSession:
        return ReadSession(self._memory, writes=False)


class MemberRunner(InlineRunner):
    """The storage of one process. It knows from the table of members, and not from the fence, who may write."""

    def __init__(self, process: Process, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._process = process
        self._has_left = False

    def commit(self, batch: list[Operation]) -> None:
        process = self._process
        if process.loses_answers and all(_change_of(operation) is not None for operation in batch):
            if process.rng.random() < 0.5:
                super().commit(batch)
                self._note_left(batch)
            fail_all(batch, CommitUnsettled(DatabaseLost("the answer was lost")))
            return
        joins = any(_change_of(operation) is join for operation in batch)
        is_member = joins or self._has_left or process.is_in_table()
        super().commit(batch)
        stored = [operation for operation in batch if operation.error is None]
        if stored and not is_member:
            raise BrokenPromise(f"{process.address} is no member any more and has stored {stored}")
        if any(isinstance(operation.error, IndexConflict) for operation in batch):
            raise BrokenPromise(f"{process.address} is not the only one that writes a stream")
        self._note_left(batch)

    def _note_left(self, batch: list[Operation]) -> None:
        stored = (operation for operation in batch if operation.error is None)
        self._has_left = self._has_left or any(_change_of(operation) is leave for operation in stored)


def _change_of(operation: Operation) -> object:
    """Returns the function by which an operation changes the tables of the cluster; None for other operations."""
    work = getattr(operation, "_work", None)
    return work.args[0].func if isinstance(work, partial) and work.func is with_view else None


class Process:
    """One process, from its start to its end.

    address: where other members reach it. has_database: whether it reaches the database.
    loses_answers: whether the answers to its changes of the cluster's tables are lost, of which half are stored.
    call: makes a connection to the member at an address. Returns the end of this process; None if it is not reached.
    on_answer: gets each message that leaves over a connection.
    """

    def __init__(
        self,
        name: str,
        address: str,
        rng: random.Random,
        database: MemoryDatabase,
        call: Callable[[Process, Link], MemberEnd | None],
        on_answer: Callable[[Message], None],
    ) -> None:
        self.name = name
        self.address = address
        self.token = rng.randbytes(8).hex()
        self.lives = False
        self.has_database = True
        self.loses_answers = False
        self.failure: StorageError | None = None
        self.ends: list[MemberEnd] = []
        self.rng = rng
        self._database = database
        self._call = call
        self._on_answer = on_answer
        self._slow_s = rng.choice((0.0, 0.005, 0.2))
        self._scope = trio.CancelScope()
        self._node: Node | None = None
        self.router: Router | None = None
        self.member: ClusterMember | None = None
        self.runner: MemberRunner | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Lives until it is killed, has left, or was replaced. Reports to `task_status` at once."""
        self.lives = True
        task_status.started()
        with self._scope:
            async with trio.open_nursery() as nursery:
                try:
                    await self._serve(nursery)
                except* StorageError as group:
                    failure = group.exceptions[0]
                    assert isinstance(failure, StorageError)
                    self.failure = failure
                finally:
                    self._end(loses=self.rng.random() < 0.5)
                    nursery.cancel_scope.cancel()

    async def _serve(self, outer: trio.Nursery) -> None:
        async with trio.open_nursery() as nursery:
            node = self._node = Node(outer)
            # A process that opens the database replaces an earlier one of its name
            # (stream_storage/postgres/ownership.py).
            self._database.fenced.update(token for (token,) in self._find_token() if token)
            source = Source(self._database, self.token)
            self.runner = runner = MemberRunner(self, source, outer, delay=self._delay, batches=node)
            self.router = router = Router(
                node,
                self.name,
                self.token,
                call=lambda link: outer.start_soon(self._connect, link),
                hang_up=self._hang_up,
                new_nonce=lambda: self.rng.randbytes(32),
                refresh=lambda: None if self.member is None else self.member.refresh(),
            )
            config = Config(lease_ttl_s=LEASE_TTL_S, cluster=self.name, block_node=False)
            services = Services(
                node,
                runner,
                config,
                now_us=lambda: int(trio.current_time() * 1e6),
                new_id=lambda: self.rng.randbytes(8).hex(),
                remote_streams=router,
            )
            services.start([])
            member = self.member = ClusterMember(
                router,
                runner,
                StreamShards(services, HostedWorkers(node, NO_TCP, nursery, config, [], lambda: 0)),
                address=self.address,
                now_us=lambda: int(trio.current_time() * 1e6),
            )
            node.register([CLUSTER], lambda: ClusterWorker(member))
            await nursery.start(member.run)

    async def leave(self) -> None:
        """Ends in order, as a node that is stopped."""
        if self.member is None or self.runner is None:
            self.kill()
            return
        try:
            await self.member.leave(trio.current_time() + LEAVE_S)
        except StorageError as error:
            self.failure = error
            self.kill()
            return
        for end in self.ends:
            end.reads = False
        with trio.move_on_after(LEAVE_S):
            await self.runner.wait_idle()
        self._end(loses=False)
        self._scope.cancel()

    def kill(self) -> None:
        self._end(loses=self.rng.random() < 0.5)
        self._scope.cancel()

    def _end(self, *, loses: bool) -> None:
        if self.lives:
            self.lives = False
            if self.runner is not None:
                self.runner.crash()
            # What the node does about the ends of its own connections comes from a dead process.
            self._call, self._on_answer = (lambda process, link: None), (lambda message: None)
            for end in self.ends:
                end.open = False
                if end.out is not None:
                    end.out.end(loses=loses)

    # Connections.

    def accept(self, peer: str, link: Link | None = None) -> MemberEnd:
        """The end of a new connection."""
        assert self._node is not None, "the process has started"
        address = local(CONNECTION_PREFIX + self.rng.randbytes(6).hex().encode())
        end = MemberEnd(
            self._node,
            address,
            peer,
            link=link,
            on_step=self.check,
            on_answer=lambda message: self._on_answer(message),
        )
        self.ends.append(end)
        self._node.register([address], lambda: end)
        return end

    @property
    def accepts(self) -> bool:
        return self.lives and self.member is not None

    async def _connect(self, link: Link) -> None:
        await trio.sleep(round(self.rng.random() * 0.05, 3))
        end = self._call(self, link)
        if not self.lives:
            return
        if end is None:
            link.ended(OpenRequests())
        else:
            assert self._node is not None
            with self._node.batch():
                link.begin(end.address)
        self.check()

    def _hang_up(self, connections: Sequence[Address]) -> None:
        gone = set(connections)
        for end in [each for each in self.ends if each.address in gone]:
            end.close(loses=True)

    # Storage.

    async def _delay(self) -> None:
        self.check()
        await trio.sleep(round(self.rng.random() * self._slow_s, 3))
        while not self.has_database:
            await trio.sleep(0.1)

    def is_in_table(self) -> bool:
        """Whether this process is the member of its name, as the committed table says."""
        return self._find_token() == [(self.token,)]

    def _find_token(self) -> list[tuple[str]]:
        ask = "SELECT token FROM cluster_members WHERE name = ?"
        return self._database.connection.execute(ask, (self.name,)).fetchall()

    def check(self) -> None:
        """Asserts the invariants of the parts of the cluster."""
        if self.router is not None:
            self.router.check()
        if self.member is not None:
            self.member._machine.check()
            self.member._hand_overs.check()
