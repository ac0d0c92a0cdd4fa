"""HostedWorkers: runs the operator's own workers on a node, and stops them before its streams close."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import structlog
import trio

from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import NEVER, Ended, Worker
from ockam.errors import AddressInUse
from ockam.identity.identity import Identity
from ockam.transport.forwarding import RemoteStreams
from ockam.transport.tcp import TcpTransport
from stream_node.fleet.cluster.view import shard_of
from stream_node.hosting.specification import LoadedWorker
from stream_node.hosting.status import ADDRESS, PART_ADDRESS, OwnWorker, OwnWorkersService, flat
from stream_node.node.config import Config, ConfigError
from stream_service.names import stream_address

if TYPE_CHECKING:
    from stream_client import StreamClient
    from stream_node.node.inside_clients import InsideClients

HOST = local("worker_host")
CLIENTS_MAX = 1_000
"""The most clients inside the node that all of its workers use together. Each identity for which they act has one."""
INSIDE = "inside:0"
"""The peer of a worker's own client, in logs and in the audit log."""

logger = structlog.get_logger(__name__)


def worker_home(address: str) -> int:
    """Returns the shard whose process runs a worker, on a node with several processes or in a cluster."""
    return shard_of(stream_address(f"worker:{address}", 0))


class HostNode:
    """The node as one of the operator's workers uses it: `self.node` of the worker.

    address: the worker's address. identity: `worker:ADDRESS`, for which the rules decide what the worker may do."""

    def __init__(self, address: str, clients: InsideClients, now_us: Callable[[], int]) -> None:
        self.address = address
        self.identity = Identity("worker", address)
        self._clients = clients
        self._now_us = now_us

    def client(self, sender: Message | None = None) -> AbstractAsyncContextManager[StreamClient]:
        """Opens a client of this node for the block: it can do all that the client of another program can, with the
        same rights, limits and audit. A lost connection, as after a change of its rules, ends it; open another one.

        sender: a message; the client then acts for whoever has sent it, with the rights and limits of that identity.
        None: it acts as the worker. Raises NoInsideClient."""
        if sender is None or sender.origin.is_node:
            return self._clients.client(self.identity, INSIDE)
        return self._clients.client(sender.origin.identity, sender.origin.peer or INSIDE)

    def now_us(self) -> int:
        """Returns the time of the node's streams, in microseconds since 1970. It does not follow a clock that jumps."""
        return self._now_us()


class WorkerHost(Worker):
    """The parent of the operator's workers of one process. It handles no message, and ends after all these workers.

    ended: the workers that have ended by themselves and are not started again, by address."""

    def __init__(self) -> None:
        self.has_ended = trio.Event()
        self.ended: dict[str, Ended] = {}

    def stopped(self) -> None:
        self.has_ended.set()

    def child_ended(self, end: Ended) -> None:
        # One worker that is given up takes no other worker with it.
        self.ended[str(end.address)] = end
        logger.error("own_worker_ended", address=str(end.address), reason=end.reason, given_up=end.gave_up)


class HostedWorkers:
    """The operator's workers of one process of a node. hangs: whether one of them did not end in time at the stop."""

    def __init__(
        self,
        node: Node,
        tcp: TcpTransport,
        nursery: trio.Nursery,
        config: Config,
        loaded: Sequence[LoadedWorker],
        now_us: Callable[[], int],
        remote_streams: RemoteStreams | None = None,
    ) -> None:
        """now_us: the clock of the streams. remote_streams: the other processes; None: this is the only one."""
        self._node = node
        self._process = "" if remote_streams is None else remote_streams.name
        self._now_us = now_us
        self._loaded = {each.address: each for each in loaded}
        self._host = WorkerHost()
        self.hangs = False
        node.register([local(ADDRESS), PART_ADDRESS], lambda: OwnWorkersService(self.states, remote_streams))
        if loaded:
            node.register([HOST], lambda: self._host, restarts=NEVER)
            # Only a node with such workers, or with HTTP, loads the client.
            from stream_node.node.inside_clients import InsideClients

            self._clients = InsideClients(tcp, nursery, config, clients_max=CLIENTS_MAX)

    def start(self) -> None:
        """Starts all workers. Raises ConfigError if one of them does not start."""
        for each in self._loaded.values():
            self._start(each)

    def serve(self, shards: Collection[int]) -> None:
        """Starts the workers whose home is one of these shards, which this process serves from now on."""
        for each in self._loaded.values():
            if worker_home(each.address) in shards:
                try:
                    self._start(each)
                except ConfigError as error:
                    # The other workers and the streams of the shard are served all the same.
                    logger.error("own_worker_not_started", address=each.address, reason=str(error))

    def leave(self, shards: Collection[int]) -> dict[int, list[Message]]:
        """Stops the workers of shards that another process serves from now on. Returns the messages that they have not
        got yet, by shard."""
        left: dict[int, list[Message]] = {}
        for address in self._loaded:
            if (home := worker_home(address)) in shards:
                left.setdefault(home, []).extend(self._node.retire(local(address)))
        return left

    def states(self) -> list[OwnWorker]:
        """Returns the state of all workers, each with its children behind it."""
        found: list[OwnWorker] = []
        for address in self._loaded:
            state, end = self._node.find_state(local(address)), self._host.ended.get(address)
            if state is not None:
                found += flat(state, self._process)
            elif end is not None:
                found.append(OwnWorker(address, 0, "", "ended", 0, 0, reason=end.reason, process=self._process))
            else:
                found.append(OwnWorker(address, 0, "", "elsewhere", 0, 0, reason="", process=""))
        return found

    async def stop(self, deadline_s: float) -> None:
        """Stops all workers, and returns when they have ended, or at `deadline_s` on trio's clock."""
        if not self._loaded:
            return
        self._node.unregister(HOST)
        with trio.move_on_at(deadline_s):
            await self._host.has_ended.wait()
        if not self._host.has_ended.is_set():
            self.hangs = True
            # A worker of which only a child hangs has not ended either.
            hanging = sorted(map(str, self._host.context.children))
            logger.error("own_workers_hang", addresses=hanging, reason="they do not end when cancelled")

    def _start(self, loaded: LoadedWorker) -> None:
        identity, demand = Identity("worker", loaded.address), loaded.demand
        host = HostNode(loaded.address, self._clients, self._now_us)
        origin = Origin("local", INSIDE, identity)

        def make() -> Worker:
            worker = loaded.make()
            if not isinstance(worker, Worker):
                raise TypeError(f"{worker!r} is no worker")
            worker.origin = origin
            # A class of the operator declares no `node` and no `demand`, or declares them with types of its own.
            given = {"node": host} if demand is None else {"node": host, "demand": lambda message: demand}
            for name, value in given.items():
                setattr(worker, name, value)
            return worker

        try:
            self._host.ended.pop(loaded.address, None)
            self._host.start_child([local(loaded.address)], make, loaded.restarts)
        except AddressInUse as error:
            raise ConfigError(f"worker: {error} by a service of this node; choose another address") from error
        except Exception as error:
            raise ConfigError(
                f"worker: the worker at {loaded.address} does not start: {error!r}; correct its class or its options"
            ) from error
        logger.info("own_worker_started", address=loaded.address)
