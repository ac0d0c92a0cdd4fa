"""Node: registers workers under addresses, routes messages to workers, and runs workers. It reads no sockets."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
import structlog
import trio

from ockam.actors.address import LOCAL, Address, Route, shown
from ockam.actors.asks import Asks
from ockam.actors.async_worker import TaskCell, check_functions
from ockam.actors.cell import Cell, WorkerState
from ockam.actors.mailbox import Life, Mailbox
from ockam.actors.message import HERE, Message, Origin, check_message, reply_to
from ockam.actors.timers import Timers
from ockam.actors.worker import ALWAYS, ASK_TIMEOUT_S, Ended, HandlingFailed, Restarts, Worker, WorkerFactory
from ockam.errors import AddressInUse
from ockam.identity.gate import Gate
from ockam.protocol import ProtocolError, failed_payload
from ockam.quotas.usage import Usages

RUNS_PER_BATCH_MAX = 10_000
"""The worker calls after which other tasks of the event loop run. Two workers could answer each other without end."""
ROUND_RUNS_MIN = 500
"""A round (a call of each worker that has messages) counts as at least this many calls. So a few workers that answer
each other keep the event loop for twenty rounds only, and thousands that are called once each are called together."""

ANSWERED = Mailbox()
"""A mailbox that is always empty. It is returned for messages that never wait: answers to `Node.ask`, and messages that
were refused before their worker was started."""

logger = structlog.get_logger(__name__)

Forward = Callable[[Message], Mailbox | None]
"""Forwards a message whose next hop is no worker here. Returns the mailbox that got the message; None: refused."""


class NodeStatistics(msgspec.Struct, frozen=True):
    """The statistics of a node. All fields except `workers` are counted since the start.

    workers: the number of addresses in use. routed: messages put into mailboxes.
    dropped: messages that were not delivered or that failed, by reason.
    crashes: crashes of workers. restarts: workers that were started again. given_up: workers that were not started
    again, because they had reached the limit of their `Restarts`."""

    workers: int
    routed: int
    dropped: dict[str, int]
    crashes: int
    restarts: int = 0
    given_up: int = 0


class Sleepers(Protocol):
    """Knows the workers that sleep, and starts them."""

    def wake(self, address: Address) -> WorkerFactory:
        """Returns the factory that starts the worker. Called once, when the worker is needed."""

    def unstarted(self, address: Address) -> Worker:
        """Returns a worker like the one that sleeps, which is never started: it says only what a message demands, and
        how it is refused."""


class DeliveryBatch:
    """The context manager that `Node.batch` returns. A batch inside another batch is a part of the outer batch."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._node.depth += 1

    def __exit__(self, *exception: object) -> None:
        self._node.end_batch()


class Node:
    """The router of messages between the workers of one process, and from workers to transports.

    depth: the number of nested open batches. gate: decides which messages the workers get; None: all.
    pause_s: how long workers pause that exchange messages without end (`ockam.actors.turns.Turns.pause_s`).
    usages: what the identities of the peers use, and their limits. asks: the requests that wait for one answer.

    A worker that sleeps has an address and takes no memory. Its first message that the gate lets pass starts it, and so
    do `find_worker` and `find_mailbox`.

    Invariant: a cell (a worker with its mailbox) that runs, is not paused and has messages is in `_ready` once. An
    address is that of a cell or of a worker that sleeps, never of both."""

    def __init__(self, nursery: trio.Nursery, usages: Usages | None = None) -> None:
        self._nursery = nursery
        self.usages = usages if usages is not None else Usages()
        self._timers = Timers(nursery, self._call)
        self._cells: dict[Address, Cell] = {}
        self._asleep: dict[Address, Sleepers] = {}
        self._ready: deque[Cell] = deque()
        self._forwards: dict[int, Forward] = {}
        self._batch = DeliveryBatch(self)
        self._at_end: list[Callable[[], None]] = []
        self._rest_waits = False
        self.depth = 0
        self.gate: Gate | None = None
        self.pause_s: Callable[[], float] = lambda: 0.0
        self._rules_version = 0
        self._routed = 0
        self.asks = Asks(self)
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def register(self, addresses: Sequence[Address], factory: WorkerFactory, *, restarts: Restarts = ALWAYS) -> Address:
        """Starts a worker under one or more addresses. Returns the first address.

        restarts: when the worker is started again after its end. Raises AddressInUse if another worker has one of the
        addresses, and CallbackExpected if the worker awaits and is no AsyncWorker."""
        return self.start_cell(addresses, factory, restarts, None)

    def start_cell(
        self, addresses: Sequence[Address], factory: WorkerFactory, restarts: Restarts, parent: Cell | None
    ) -> Address:
        # All addresses are checked before the first is taken, so that an error leaves nothing behind.
        for address in addresses:
            if self.is_registered(address):
                raise AddressInUse(f"the address {address} is taken")
        worker = factory()
        of: type = type(worker)
        check_functions(of)
        kind = TaskCell if worker.awaits else Cell
        cell = kind(self, tuple(addresses), factory, worker, restarts, parent)
        self._cells.update(dict.fromkeys(addresses, cell))
        if parent is not None:
            # Most cells have no children, and an empty dict takes memory.
            if parent.children is None:
                parent.children = {}
            parent.children[cell] = None
        try:
            cell.start()
        except BaseException:
            self.end_cell(cell)
            raise
        return addresses[0]

    def register_asleep(self, address: Address, sleepers: Sleepers) -> None:
        """Takes the address for a worker that sleeps. Raises AddressInUse."""
        if self.is_registered(address):
            raise AddressInUse(f"the address {address} is taken")
        self._asleep[address] = sleepers

    def put_to_sleep(self, address: Address, sleepers: Sleepers) -> None:
        """Stops the worker at this address, which has no message, but keeps the address."""
        self.unregister(address)
        self._asleep[address] = sleepers

    def is_asleep(self, address: Address) -> bool:
        return address in self._asleep

    def unregister(self, address: Address) -> None:
        """Stops the worker at this address and its children, and frees all their addresses. Safe to repeat."""
        self._asleep.pop(address, None)
        cell = self._cells.get(address)
        if cell is not None:
            self.end_cell(cell)

    def end_cell(self, cell: Cell, end: Ended | None = None) -> None:
        # The addresses go first: messages that the worker sends while it stops must not come back to it.
        if self._cells.get(cell.addresses[0]) is cell:
            for each in cell.addresses:
                del self._cells[each]
            cell.stop(end)

    def retire(self, address: Address) -> list[Message]:
        """Stops the worker at this address. Returns the messages that it has not begun to handle."""
        waiting: list[Message] = []
        cell = self._cells.get(address)
        if cell is not None:
            cell.take_back()
            while run := cell.mailbox.take_run():
                waiting += run
        self.unregister(address)
        return waiting

    def is_registered(self, address: Address) -> bool:
        return address in self._cells or address in self._asleep

    def find_mailbox(self, address: Address) -> Mailbox | None:
        """Returns the mailbox of the worker at this address, or None. A restart of the worker keeps the mailbox."""
        cell = self._cells.get(address) or self._wake(address)
        return cell.mailbox if cell is not None else None

    def find_worker(self, address: Address) -> Worker | None:
        """Returns the worker at this address, or None. A restart replaces the worker object."""
        cell = self._cells.get(address) or self._wake(address)
        return cell.worker if cell is not None else None

    def find_judge(self, address: Address) -> Worker | None:
        """Returns the worker at this address, without starting one that sleeps (`Sleepers.unstarted`), or None."""
        sleepers = self._asleep.get(address)
        return self.find_worker(address) if sleepers is None else sleepers.unstarted(address)

    def register_forward(self, address_type: int, forward: Forward) -> Forward | None:
        """Registers the transport for one address type: it gets the messages whose next hop is no worker of this node.
        Returns the function registered before, or None."""
        before = self._forwards.get(address_type)
        self._forwards[address_type] = forward
        return before

    def send(self, message: Message) -> bool:
        """Puts a message into the mailbox of its next hop, and runs the worker unless a batch is open. Returns False if
        no worker or transport took the message. Raises InvalidMessage."""
        check_message(message)
        with self._batch:
            return self.deliver(message) is not None

    def send_run(self, messages: Iterable[Message]) -> None:
        """Sends many messages in one batch."""
        # Every append of a stream passes here. The context manager of `batch` would cost it two calls.
        self.depth += 1
        try:
            run = messages if isinstance(messages, list) else list(messages)
            # A single message is frequent: with many streams, each has one answer in a transaction.
            if len(run) == 1:
                self.deliver(run[0])
            elif run:
                self.deliver_run(run)
        finally:
            self.end_batch()

    def deliver(self, message: Message) -> Mailbox | None:
        """Puts a message into the mailbox of its next hop. The worker runs when the open batch ends. Returns the
        mailbox that got the message, or None if no worker or transport took the message."""
        route = message.onward_route
        if not route:
            return None
        cell = self._cells.get(route[0])
        if cell is None:
            # The next hop is no worker here: a transport may forward the message.
            if route[0] not in self._asleep:
                return self._deliver_remote(message)
            cell = self._wake_for(message)
            if cell is None:
                return ANSWERED
        # Between a crash and the restart nobody empties the mailbox, and a worker that awaits may never do so. It must
        # not grow without limit.
        if cell.refuses and cell.mailbox.at_limit:
            self._refuse_full(cell, message)
            return None
        self._routed += 1
        mailbox = cell.mailbox
        mailbox.put(message)
        # The cell is queued here and not by a call of `queue`, which would cost time for each message.
        if not cell.queued and not cell.paused:
            cell.queued = True
            self._ready.append(cell)
        return mailbox

    def deliver_run(self, messages: Sequence[Message]) -> set[Mailbox]:
        """Puts each message into the mailbox of its next hop, in order. Returns the mailboxes that got messages."""
        mailboxes: set[Mailbox] = set()
        start, count, cells = 0, len(messages), self._cells
        while start < count:
            message = messages[start]
            route = message.onward_route
            # The messages of a publisher share one route object. They are put into their mailbox with one call.
            end = start + 1
            while end < count and messages[end].onward_route is route:
                end += 1
            cell = cells.get(route[0]) if route else None
            # A transport, or a worker that restarts or awaits, may refuse each message, so these are delivered one by
            # one. So are messages to a worker that sleeps: the first message starts the worker.
            if cell is None or cell.refuses:
                found = map(self.deliver, messages[start:end])
                mailboxes.update(mailbox for mailbox in found if mailbox is not None)
            else:
                # The mailbox never refuses; a full one stops the readers of connections instead.
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

    def batch(self) -> DeliveryBatch:
        """Returns a context manager that collects messages, and at its end calls each worker with all its messages. So
        the whole batch costs a worker only one call, one commit and one send."""
        return self._batch

    def end_batch(self) -> None:
        """Ends a batch. At the end of the outermost batch, the workers with messages run."""
        self.depth -= 1
        if not self.depth and (self._ready or self._at_end):
            self._run_ready()

    def at_batch_end(self, function: Callable[[], None]) -> None:
        """Calls the function, which must not raise, after the open batch and its workers; without a batch, now."""
        if self.depth:
            self._at_end.append(function)
        else:
            function()

    async def give_way(self) -> None:
        """Lets other tasks run. Workers that exchange messages without end call it again and again."""
        await trio.sleep(self.pause_s())

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Calls the function once after the delay. Messages that the function sends are collected in one batch."""
        self._timers.call_later(delay_s, function)

    def start_task(self, function: Callable[[], Awaitable[object]]) -> None:
        """Runs an async function beside the workers, until the node ends. The function must not raise."""
        self._nursery.start_soon(function)

    def refuse(self, message: Message, reason: str) -> None:
        """Answers a message that is refused before its worker gets it, in the protocol of that worker."""
        worker = self.find_judge(message.onward_route[0]) if message.onward_route else None
        if worker is None or not message.return_route:
            return
        # A message that the worker could not read gets no answer: it may be an answer itself.
        try:
            payload = worker.denied_payload(message, reason)
        except ProtocolError:
            return
        if payload is not None:
            self.send(reply_to(message, message.onward_route[0], payload))

    async def ask(
        self, route: Route, payload: bytes, timeout_s: float = ASK_TIMEOUT_S, origin: Origin = HERE
    ) -> Message:
        """Sends a request and returns the first answer that comes to its private return address.

        Raises AskRefused if the answer is an `error` or nobody takes the request, AskTimedOut, and InvalidMessage. If
        the caller is cancelled, a later answer to its request is dropped."""
        return await self.asks.ask(route, payload, timeout_s, origin)

    def note_new_rules(self) -> None:
        """Makes the gate decide again, by the new rules, about messages that it let pass and that were put back."""
        self._rules_version += 1

    def count(self, what: str, number: int = 1) -> None:
        self._counts[what] += number

    def counted(self, what: str) -> int:
        return self._counts[what]

    def count_drop(self, reason: str) -> None:
        self._dropped[reason] += 1

    def queue(self, cell: Cell) -> None:
        self._ready.append(cell)

    def mailboxes(self) -> Iterator[Mailbox]:
        """Iterates over the mailboxes of running workers: once for each address of the worker."""
        return (cell.mailbox for cell in self._cells.values())

    def find_state(self, address: Address) -> WorkerState | None:
        """Returns the state of the worker at this address with its children, or None."""
        cell = self._cells.get(address)
        return cell.state() if cell is not None else None

    def tree(self) -> tuple[WorkerState, ...]:
        """Returns the state of all workers. The state of a child is part of the state of its parent."""
        return tuple(cell.state() for cell in dict.fromkeys(self._cells.values()) if cell.parent is None)

    def statistics(self) -> NodeStatistics:
        counts = (self._counts[name] for name in ("crashes", "restarts", "given_up"))
        return NodeStatistics(len(self._cells) + len(self._asleep), self._routed, dict(self._dropped), *counts)

    def _call(self, function: Callable[[], None]) -> None:
        with self.batch():
            function()

    def _wake(self, address: Address) -> Cell | None:
        """Starts the worker that sleeps at this address, and returns its cell; None if none sleeps there."""
        sleepers = self._asleep.pop(address, None)
        if sleepers is None:
            return None
        self.register([address], sleepers.wake(address))
        return self._cells[address]

    def _wake_for(self, message: Message) -> Cell | None:
        """Starts the worker that sleeps at the next hop of this message, and returns its cell. Returns None if the
        sender may not send the message; the gate has then answered."""
        address = message.onward_route[0]
        # Without this check, anybody could start a worker at every known address.
        if self.gate is not None and not self.gate.admit(self._asleep[address].unstarted(address), (message,)):
            return None
        cell = self._wake(address)
        assert cell is not None, "the address is that of a worker that sleeps"
        cell.mailbox.passed = 0 if self.gate is None else 1
        cell.mailbox.rules_version = self._rules_version
        return cell

    def _refuse_full(self, cell: Cell, message: Message) -> None:
        self._dropped["restarting" if cell.life is Life.RESTARTING else "mailbox_full"] += 1
        # Only a full worker that awaits refuses with an answer: for others, connections stop reading. The answer has
        # no return route: two full mailboxes would refuse each other's refusals without end.
        if cell.mailbox.refuses and message.return_route:
            self.send(Message(message.return_route, (), failed_payload("the mailbox is full; send it again later")))

    def _deliver_remote(self, message: Message) -> Mailbox | None:
        hop = message.onward_route[0]
        if self.asks.take(message):
            return ANSWERED
        forward = self._forwards.get(hop.type)
        mailbox = forward(message) if forward is not None else None
        # No transport takes the message. It is dropped without an answer, as in real nodes.
        if mailbox is None:
            self._dropped["unknown_address" if hop.type == LOCAL else "forward_refused"] += 1
            if logger.is_enabled_for(logging.DEBUG):
                logger.debug("message_dropped", onward=shown(hop), peer=message.origin.peer)
        return mailbox

    def _run_ready(self) -> None:
        # Messages that the workers send while they run belong to this batch.
        self.depth += 1
        try:
            left = RUNS_PER_BATCH_MAX
            while left > 0:
                count = len(self._ready)
                if not count:
                    return
                left -= max(count, ROUND_RUNS_MIN)
                for _ in range(count):
                    # A cell leaves the queue before its worker runs, so that its messages to itself queue it again.
                    cell = self._ready.popleft()
                    cell.queued = False
                    if not cell.paused:
                        self._run(cell)
            # Some workers still have messages, but other tasks of the event loop run first. One task is enough: if each
            # batch of a client left a task, two workers in a circle would soon run in thousands of tasks.
            if not self._rest_waits:
                self._rest_waits = True
                self._nursery.start_soon(self._run_rest)
        finally:
            self.depth -= 1
            # The list is emptied first: a function may open a batch, whose end calls the functions added in it.
            functions, self._at_end = self._at_end, []
            for function in functions:
                function()

    async def _run_rest(self) -> None:
        # Meanwhile another batch may have run the other workers at its end.
        await self.give_way()
        self._rest_waits = False
        if self._ready and not self.depth:
            self._run_ready()

    def _run(self, cell: Cell) -> None:
        mailbox = cell.mailbox
        # Messages that were put back were allowed already, by the rules of that time.
        passed = mailbox.passed if mailbox.rules_version == self._rules_version else 0
        run: Sequence[Message] = mailbox.take_run(passed or cell.run_messages_max, counts=True)
        try:
            # A worker never sees a message that the sender may not send to it. The gate decides, and audits, once.
            if self.gate is not None and run and not passed:
                mailbox.rules_version = self._rules_version
                run = self.gate.admit(cell.worker, run)
            if run:
                cell.worker.receive(run)
        except HandlingFailed as failure:
            # Only one message failed. The later messages are handled after the restart.
            mailbox.put_back(run[failure.position + 1 :])
            cell.crash(run[failure.position : failure.position + 1], failure.__cause__ or failure)
        except Exception as error:
            cell.crash(run, error)
        else:
            cell.make_ready()
        if mailbox.counted and not cell.taken:
            mailbox.handled()
