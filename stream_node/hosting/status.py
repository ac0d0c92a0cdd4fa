"""The service `node_own_workers`: lists the operator's own workers, as a tree, with their states and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

import bare
from ockam.actors.address import local
from ockam.actors.asker import ask_all
from ockam.actors.message import Message
from ockam.actors.worker import AnsweringWorker
from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from ockam.protocol import Protocol

if TYPE_CHECKING:
    from ockam.actors.cell import WorkerState
    from ockam.transport.forwarding import RemoteStreams

ADDRESS = "node_own_workers"
PART_ADDRESS = local("node_own_workers_part")
"""The address at which one of several processes answers for itself."""


# type OwnWorkersRequest struct { request_id: uint }
class OwnWorkersRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt


# type OwnWorker struct { address: str  depth: uint  kind: str  state: str  waiting: uint  restarts: uint  reason: str
#   process: str }
class OwnWorker(msgspec.Struct, frozen=True):
    """One worker, see `ockam.actors.cell.WorkerState`. Its children follow it, with a depth that is higher by one.

    state: also "ended" (it is not started again) and "elsewhere" (another member of the cluster runs it, and its
    children are not known). process: the process or member that runs it; empty on a node with one process."""

    address: str
    depth: bare.UInt
    kind: str
    state: str
    waiting: bare.UInt
    restarts: bare.UInt
    reason: str
    process: str


# type OwnWorkers struct { request_id: uint  workers: list<OwnWorker> }
class OwnWorkers(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    workers: list[OwnWorker]


OWN_WORKERS = Protocol("node/own_workers/1", OwnWorkersRequest, OwnWorkers)


class OwnWorkersService(AnsweringWorker):
    """The worker that answers at `node_own_workers`. states: returns the states of the workers of this process."""

    def __init__(self, states: Callable[[], list[OwnWorker]], remote_streams: RemoteStreams | None) -> None:
        self._states = states
        self._remote_streams = remote_streams

    def answer(self, message: Message) -> None:
        request = OWN_WORKERS.decode_request(message.payload)
        joined = partial(self._join, message, request.request_id)
        if not ask_all(self, self._remote_streams, PART_ADDRESS, message, OWN_WORKERS, joined):
            joined([OwnWorkers(request.request_id, self._states())])

    def demand(self, message: Message) -> Demand:
        return Demand(Right.OPERATE | Right.ADMIN, EVERY_NAME)

    def _join(self, message: Message, request_id: int, found: list[OwnWorkers]) -> None:
        # Each process also lists the workers of the other processes, as "elsewhere".
        workers = [each for part in found for each in part.workers if len(found) == 1 or each.state != "elsewhere"]
        self.reply(message, OWN_WORKERS.encode_response(OwnWorkers(request_id, workers)))


def flat(state: WorkerState, process: str, depth: int = 0) -> Iterator[OwnWorker]:
    """Iterates over a worker and all below it, each worker before its children."""
    yield OwnWorker(
        address=str(state.address),
        depth=depth,
        kind=state.kind,
        state=state.state,
        waiting=state.waiting,
        restarts=state.restarts,
        reason=state.reason,
        process=process,
    )
    for child in state.children:
        yield from flat(child, process, depth + 1)
