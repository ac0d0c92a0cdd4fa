"""Mirror: one stream-partition of this node that follows a source or fences its former one, with its statistics.
RemoteNode: asks another node, and waits for its answers (`ockam.actors.asker`). Failures become MirrorErrors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TypeVar

import structlog
import trio

from ockam.actors.address import Address, local, tcp
from ockam.actors.asker import Asker, Unanswered
from ockam.actors.worker import NEVER
from ockam.errors import InvalidAddress
from ockam.protocol import ERROR, FAILURE, REFUSAL, Protocol, ProtocolError
from ockam.transport.forwarding import UNREACHABLE, is_destination_unreachable
from stream_node.fleet.mirror.protocol import AGREEING, PRIMARIES, MirrorCondition, MirrorState
from stream_service.mirror_operations import AnyChange, StreamChange, load_history
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import ROLE, BeMirror, BePrimary, RoleRequest, RoleResponse
from stream_service.names import stream_address
from stream_service.role_machine import UNDER_PROMOTION, StreamRole
from stream_service.workers.directory import StreamDirectory
from stream_service.workers.stream import StreamWorker
from stream_service.workers.stream_bounds import StreamBounds
from stream_storage.contract import Session
from stream_storage.history import History
from stream_storage.runner import do

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

ANSWER_S_MAX = 10.0
"""The longest wait for an answer, beyond the time for which the other node may delay it."""
BUSY_RETRY_S = 0.005
"""The pause before a change is tried again while the worker does something else."""
LOOK_S = 1.0
PATIENCE_S = 30.0
"""The longest wait until the worker is ready for a change."""

logger = structlog.get_logger(__name__)

Identity = tuple[str, int]


class MirrorError(Exception):
    """Error: a mirror cannot do what it was asked for, or cannot follow its source. The base class of this package's
    errors."""


class SourceLost(MirrorError):
    """Error: the node with the source cannot be reached, or does not answer in time."""


class SourceRefused(MirrorError):
    """Error: the node with the source refuses a request of the mirror, for example for lack of a right."""


class Parted(MirrorError):
    """Error: the mirror has messages that its source does not have, so it cannot follow."""


class SourceGoesOn(MirrorError):
    """Error: a mirror is not promoted by force, because its source answers, would go on taking pushes beside it, and
    cannot become its mirror."""


class RemoteNode:
    """Another node, as the tasks of mirrors ask it. destination: its `host:port`."""

    def __init__(self, asker: Asker, destination: str) -> None:
        self._asker = asker
        self._destination = destination
        self._first = tcp(destination)

    @property
    def connection(self) -> Address | None:
        """The connection of this node through which the other node has answered last. A node that was started anew
        answers through another connection."""
        return self._asker.connection

    async def ask_raw(self, to: Address, protocol: Protocol[Q, A], request: Q, wait_s: float = 0.0) -> bytes:
        """Sends a request to a worker of the other node, and returns the payload of the answer.
        wait_s: how long the other node may delay the answer. Raises SourceLost, SourceRefused."""
        answer = await self._asker.answer((self._first, to), protocol.encode_request(request), wait_s + ANSWER_S_MAX)
        if isinstance(answer, Unanswered):
            raise SourceLost(answer.value.format(self._destination))
        if ERROR.is_in(answer):
            try:
                reason = ERROR.decode_response(answer).reason
            except ProtocolError as error:
                text = f"{self._destination} answers with an error that cannot be read: {error}"
                raise SourceRefused(text) from error
            # The other node's errors keep their words, so that an operator reads what it said.
            said = reason.removeprefix(REFUSAL).removeprefix(FAILURE)
            if is_destination_unreachable(reason):
                said = said.removeprefix(f"{UNREACHABLE}{self._destination}: ")
                raise SourceLost(f"{self._destination} cannot be reached: {said}")
            raise SourceRefused(f"{self._destination}: {said}")
        if not protocol.is_in(answer):
            raise SourceRefused(f"{self._destination} answers {protocol.name} with another protocol")
        return answer

    async def ask(self, to: Address, protocol: Protocol[Q, A], request: Q, wait_s: float = 0.0) -> A:
        answer = await self.ask_raw(to, protocol, request, wait_s)
        try:
            return protocol.decode_response(answer)
        except ProtocolError as error:
            raise SourceRefused(f"{self._destination}: {error}") from error


@contextmanager
def asking(directory: StreamDirectory, destination: str) -> Iterator[RemoteNode]:
    """Yields the node at `destination`, a `host:port`. Raises SourceLost if that is no address of a node."""
    try:
        asker = Asker(directory.node, tcp(destination))
    except InvalidAddress as error:
        raise SourceLost(f"no node can be reached there: {error}") from error
    address = directory.node.register([local("MI_" + directory.new_id())], lambda: asker, restarts=NEVER)
    try:
        yield RemoteNode(asker, destination)
    finally:
        directory.node.unregister(address)


class LocalStream:
    """A stream-partition of this node. Its worker makes every change, so that pushes, pulls and truncations see it."""

    def __init__(self, directory: StreamDirectory, identity: tuple[str, int]) -> None:
        self.directory = directory
        self.identity = identity
        self.address = stream_address(*identity)

    def get_worker(self) -> StreamWorker:
        """Returns the worker of the stream. Raises MirrorError if the node has no such stream that can be a mirror."""
        worker = self.directory.node.find_worker(self.address)
        if not isinstance(worker, StreamWorker) or worker.identity != self.identity:
            raise MirrorError(f"this node has no stream {self.identity[0]!r} that can be a mirror")
        return worker

    @property
    def bounds(self) -> StreamBounds:
        return self.get_worker().bounds

    async def change(
        self, work: Callable[[Session, AnyChange], T], look: Callable[[], None] = lambda: None
    ) -> StreamChange[T]:
        """Makes one change, and returns its operation. After a StorageError or a MirrorError, the change may have been
        made all the same. work: makes the change. look: called right before the change begins."""
        made: list[StreamChange[T]] = []
        ended = trio.Event()

        def then(operation: StreamChange[T]) -> None:
            made.append(operation)
            ended.set()

        # 1. Begin, as soon as the worker does nothing else.
        deadline_s = trio.current_time() + PATIENCE_S
        while True:
            worker = self.get_worker()
            look()
            if worker.change(work, then):
                break
            if trio.current_time() > deadline_s:
                raise MirrorError(f"the stream {self.identity[0]!r} is busy with something else for {PATIENCE_S:g} s")
            await trio.sleep(BUSY_RETRY_S)
        # 2. Wait. A worker that crashed meanwhile calls nothing.
        while not ended.is_set():
            with trio.move_on_after(LOOK_S):
                await ended.wait()
            if not ended.is_set() and self.directory.node.find_worker(self.address) is not worker:
                raise MirrorError(f"the worker of {self.identity[0]!r} has stopped during a change")
        (operation,) = made
        if operation.error is not None:
            raise operation.error
        return operation

    async def write(self, work: Callable[[Session], T]) -> T:
        """Calls a function that writes, but does not change this stream. Raises StorageError."""
        return await do(self.directory.storage.submit_write, work)

    async def read(self, work: Callable[[Session], T]) -> T:
        return await do(self.directory.storage.submit_read, work)

    async def get_history(self) -> History:
        bounds = self.bounds
        if not bounds.history:
            return bounds.learn_history(await self.write(partial(load_history, stream_id=bounds.stream_id)))
        return bounds.history


class Mirror:
    """The data of the tasks of one mirror. condition, reason: see `stream_node.fleet.mirror.protocol.MirrorState`."""

    def __init__(self, stream: LocalStream, row: MirrorRow) -> None:
        self.stream = stream
        # The row when the present task began. Its source stays the same until the next task.
        self.row = row
        self.condition = MirrorCondition.STARTING
        self.reason = ""
        # The end of the source in its last answer, and when the mirror requested that answer, in microseconds since
        # 1970; 0 if there was none. Everything that the source had confirmed by then is before that end.
        self.source_next_index, self.heard_us = row.source_next_index, row.heard_us
        # The connection through which the source has answered when the mirror was last seen to agree with it.
        self.connection: Address | None = None
        self.promotion_reason = ""  # why a promotion that is under way does not go on; empty if it does
        self._level_s = trio.current_time()

    def has_role(self, roles: Collection[StreamRole]) -> bool:
        """Whether the stream has one of these roles now."""
        row = self._find_row()
        return row is not None and row.role in roles

    def _find_row(self) -> MirrorRow | None:
        """Returns the stream's row in the table of mirrors. None without one, or while the stream is deleted."""
        with suppress(MirrorError):
            return self.stream.bounds.mirror
        return None

    def asking(self) -> AbstractContextManager[RemoteNode]:
        return asking(self.stream.directory, self.row.source)

    async def change_source(
        self, remote: RemoteNode, change: BeMirror | BePrimary | None = None, *, force: bool = False
    ) -> RoleResponse:
        """Asks the source to change its role; without `change`, only to report its role. Raises MirrorError."""
        source = stream_address(self.row.source_name, self.stream.identity[1])
        return await remote.ask(source, ROLE, RoleRequest(0, change, force))

    def note_stored(self) -> None:
        if self.stream.bounds.next_index >= self.source_next_index:
            self._level_s = trio.current_time()

    def report(self, condition: MirrorCondition, reason: str = "") -> None:
        if condition is not self.condition:
            name, partition = self.stream.identity
            log = logger.info if condition is MirrorCondition.FOLLOWING else logger.warning
            log("mirror", stream=name, partition=partition, condition=condition.name.lower(), reason=reason)
        self.condition, self.reason = condition, reason

    def find_state(self) -> MirrorState | None:
        """Returns the present state; None if the stream has no row in the table of mirrors."""
        row = self._find_row()
        return None if row is None else self.state(row)

    def state(self, row: MirrorRow) -> MirrorState:
        """Returns the present state. row: the stream's row in the table of mirrors. Raises MirrorError."""
        (name, partition), next_index = self.stream.identity, self.stream.bounds.next_index
        lag = max(0, self.source_next_index - next_index)
        # A mirror whose source is silent may lack the pushes since then.
        is_level = not lag and self.condition in AGREEING
        lag_s = 0.0 if is_level or self.condition in PRIMARIES else trio.current_time() - self._level_s
        # The role of the row is stronger than the condition that its task has seen.
        is_promoted = row.role in UNDER_PROMOTION
        return MirrorState(
            name,
            partition,
            MirrorCondition.PROMOTING if is_promoted else self.condition,
            self.promotion_reason if is_promoted else self.reason,
            source=row.source,
            source_name=row.source_name,
            next_index=next_index,
            source_next_index=self.source_next_index,
            lag=lag,
            lag_us=round(lag_s * 1e6),
            heard_us=self.heard_us,
            aside_name=row.aside_name,
            aside_messages=row.aside_messages,
        )
