"""The node: which worker lives at which address, how messages reach it, and what happens when it fails.

Everything here is a plain call inside one trio task at a time: routing a message puts it into a mailbox, and `batch`
runs the workers whose mailboxes are not empty. It reads no sockets and knows no payloads.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog
import trio

from ockam.address import LOCAL, Address, shown
from ockam.cell import Cell
from ockam.errors import AddressInUse
from ockam.mailbox import Life, Mailbox
from ockam.message import Message
from ockam.timers import Timers
from ockam.worker import HandlingFailed, Worker, WorkerFactory

RUNS_PER_BATCH_MAX = 10_000
"""After this many runs the event loop gets its turn, so that two workers that call each other cannot stop the node."""

logger = structlog.get_logger(__name__)

Forward = Callable[[Message], Mailbox | None]
"""Takes a message whose next hop is not on this node; the mailbox that it went to, None where it will not."""


class NodeStatistics(msgspec.Struct, frozen=True):
    """Counters since the start. dropped: by reason, messages that nobody took."""

    workers: int
    routed: int
    dropped: dict[str, int]
    crashes: int


class Batch:
    """What `Node.batch` is: batches within a batch are part of it."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._node.depth += 1

    def __exit__(self, *exception: object) -> None:
        self._node.end_batch()


class Node:
    """Registers, routes and supervises workers.

    depth: of the batches that are open within each other.
    Invariant: a cell is in `_ready` exactly once if and only if it runs, is not paused and has messages.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._timers = Timers(nursery, self._call)
        self._cells: dict[Address, Cell] = {}
        self._ready: deque[Cell] = deque()
        self._forwards: dict[int, Forward] = {}
        self._batch = Batch(self)
        self._at_end: list[Callable[[], None]] = []
        self.depth = 0
        self._routed = 0
        self._crashes = 0
        self._dropped: Counter[str] = Counter()

    def register(self, addresses: Sequence[Address], factory: WorkerFactory) -> Address:
        """Start a worker under one or more addresses; the first is its own. Raises AddressInUse."""
        for address in addresses:
            if address in self._cells:
                raise AddressInUse(f"the address {address} is taken")
        cell = Cell(self, tuple(addresses), factory)
        self._cells.update(dict.fromkeys(addresses, cell))
        cell.start()
        return addresses[0]

    def unregister(self, address: Address) -> None:
        """Stop the worker at this address and free all its addresses; safe to repeat."""
        cell = self._cells.get(address)
        if cell is not None:
            for each in cell.addresses:
                del self._cells[each]
            cell.stop()

    def is_registered(self, address: Address) -> bool:
        return address in self._cells

    def find_mailbox(self, address: Address) -> Mailbox | None:
        """The mailbox of the worker there; it outlives the worker's restarts."""
        cell = self._cells.get(address)
        return cell.mailbox if cell is not None else None

    def find_worker(self, address: Address) -> Worker | None:
        """The worker that lives there now; a restart replaces it."""
        cell = self._cells.get(address)
        return cell.worker if cell is not None else None

    def register_forward(self, address_type: int, forward: Forward) -> None:
        """Hand messages whose next hop has that type (TCP, say) to a transport."""
        self._forwards[address_type] = forward

    def send(self, message: Message) -> bool:
        """Put a message into the mailbox of its next hop, and run the worker unless a batch is open."""
        with self._batch:
            return self.deliver(message) is not None

    def send_run(self, messages: Iterable[Message]) -> None:
        """Send many in one batch."""
        with self._batch:
            self.deliver_run(messages if isinstance(messages, list) else list(messages))

    def deliver(self, message: Message) -> Mailbox | None:
        """Like `send`, but the worker runs when the open batch ends; the mailbox, so that the caller can wait on it."""
        route = message.onward_route
        if not route:
            return None
        cell = self._cells.get(route[0])
        if cell is None:
            return self._deliver_elsewhere(message)
        if cell.life is Life.RESTARTING and cell.mailbox.full:
            self._dropped["restarting"] += 1
            return None
        self._routed += 1
        mailbox = cell.mailbox
        mailbox.put(message)
        if not cell.queued and not cell.paused:
            cell.queued = True
            self._ready.append(cell)
        return mailbox

    def deliver_run(self, messages: Sequence[Message]) -> set[Mailbox]:
        """As `deliver` for each, in order; the mailboxes that they went to.

        Messages that follow each other along the same route, the same object, are put into its mailbox at once.
        """
        mailboxes: set[Mailbox] = set()
        start, count, cells = 0, len(messages), self._cells
        while start < count:
            message = messages[start]
            route = message.onward_route
            end = start + 1
            while end < count and messages[end].onward_route is route:
                end += 1
            cell = cells.get(route[0]) if route else None
            if cell is None or cell.life is Life.RESTARTING:
                found = map(self.deliver, messages[start:end])
                mailboxes.update(mailbox for mailbox in found if mailbox is not None)
            else:
                self._routed += end - start
                mailbox = cell.mailbox
                if end - start == 1:
                    mailbox.put(message)
                else:
                    mailbox.put_run(messages[start:end])
                mailboxes.add(mailbox)
                if not cell.queued and not cell.paused:
                    cell.queued = True
                    self._ready.append(cell)
            start = end
        return mailboxes

    def batch(self) -> Batch:
        """Gather what is sent inside, then run every worker that has something: one run, one commit, one send each."""
        return self._batch

    def end_batch(self) -> None:
        """The end of a batch, for `Batch`: that of the outermost one runs the workers."""
        self.depth -= 1
        if not self.depth and (self._ready or self._at_end):
            self._run_ready()

    def at_batch_end(self, function: Callable[[], None]) -> None:
        """Call once when the open batch has ended and its workers have run; now where none is open. Not to raise."""
        if self.depth:
            self._at_end.append(function)
        else:
            function()

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call once after the delay, in a batch."""
        self._timers.call_later(delay_s, function)

    def count_drop(self, reason: str) -> None:
        self._dropped[reason] += 1

    def queue(self, cell: Cell) -> None:
        """Note that this cell's worker has something to do; it runs when the open batch ends."""
        self._ready.append(cell)

    def statistics(self) -> NodeStatistics:
        return NodeStatistics(len(self._cells), self._routed, dict(self._dropped), self._crashes)

    def _call(self, function: Callable[[], None]) -> None:
        with self.batch():
            function()

    def _deliver_elsewhere(self, message: Message) -> Mailbox | None:
        """The next hop is not a worker of ours: a transport takes it, or it is dropped in silence like the peers do."""
        hop = message.onward_route[0]
        forward = self._forwards.get(hop.type)
        mailbox = forward(message) if forward is not None else None
        if mailbox is None:
            self._dropped["unknown_address" if hop.type == LOCAL else "forward_refused"] += 1
            if logger.is_enabled_for(logging.DEBUG):
                logger.debug("message_dropped", onward=shown(hop), peer=message.origin.peer)
        return mailbox

    def _run_ready(self) -> None:
        self.depth += 1
        try:
            for _ in range(RUNS_PER_BATCH_MAX):
                if not self._ready:
                    return
                cell = self._ready.popleft()
                cell.queued = False
                if not cell.paused:
                    self._run(cell)
            self._nursery.start_soon(self._run_rest)
        finally:
            self.depth -= 1
            functions, self._at_end = self._at_end, []
            for function in functions:
                function()

    async def _run_rest(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._ready and not self.depth:
            self._run_ready()

    def _run(self, cell: Cell) -> None:
        run = cell.mailbox.take_run()
        try:
            cell.worker.receive(run)
        except HandlingFailed as failure:
            cell.mailbox.put_back(run[failure.position + 1 :])
            self.crash(cell, run[failure.position : failure.position + 1], failure.__cause__ or failure)
        except Exception as error:
            self.crash(cell, run, error)
        else:
            cell.make_ready()

    def crash(self, cell: Cell, failed: Sequence[Message], error: BaseException) -> None:
        """The worker failed on these messages: tell their senders and start it anew after a delay."""
        self._crashes += 1
        cell.crash(failed, error)
