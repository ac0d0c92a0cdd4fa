"""Asks: requests of this node whose sender waits for one answer. They are sent by workers and by the program itself.

Each request has a private return address without a worker: the first message to it answers and ends the request."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from ockam.actors.address import LOCAL, Address, Route, format_route
from ockam.actors.cell import Dispatcher
from ockam.actors.message import HERE, Message, Origin, check_message
from ockam.errors import AskRefused, AskTimedOut
from ockam.protocol import ERROR, FAILURE, REFUSAL, ProtocolError

LOOK_S = 0.05
"""The interval in which requests notice that their time is over, or that the asked worker has ended."""
ADDRESS_PREFIX = b"ASK_"
AT_ONCE_MAX = 30
"""After this many answers that came without a wait, other tasks run once."""


class Ask(msgspec.Struct, eq=False):
    """One request. answer: the message that answered it, or the error that ended it. task: the waiting task.

    address: the return address. worker: the worker or the connection of this node to which the request goes
    first; None: a transport takes it."""

    address: Address
    route: Route
    worker: Address | None
    deadline_s: float
    answer: Message | AskTimedOut | AskRefused | None = None
    task: Task | None = None

    def end(self, answer: Message | AskTimedOut | AskRefused) -> None:
        self.answer = answer
        if self.task is not None:
            reschedule(self.task)

    def forget(self, _: object) -> Abort:
        # The cancelled task runs only later. An answer that comes before that must not wake it a second time.
        self.task = None
        return Abort.SUCCEEDED


class Asks:
    """The open requests of one node, by their return addresses. A peer that was not asked cannot guess an address.

    Invariant: an address is in `_open` exactly while its request has no answer. So a late or second answer comes to an
    unknown address, whatever has ended the request. One timer watches all requests."""

    def __init__(self, node: Dispatcher) -> None:
        self._node = node
        self._open: dict[Address, Ask] = {}
        self._is_watching = False
        self._at_once = 0

    async def ask(self, route: Route, payload: bytes, timeout_s: float, origin: Origin = HERE) -> Message:
        (answer,) = await self.answers(self.send_all(route, (payload,), timeout_s, origin))
        return _checked(answer, route)

    def send_all(
        self, route: Route, payloads: Sequence[bytes], timeout_s: float, origin: Origin, prefix: bytes = ADDRESS_PREFIX
    ) -> list[Ask]:
        """Sends requests in one batch, so that their worker gets them in one call. prefix: the beginning of the return
        addresses. Raises InvalidMessage; then no request is sent."""
        asks, deadline_s = [], trio.current_time() + timeout_s
        addresses = [Address(LOCAL, prefix + secrets.token_bytes(12).hex().encode()) for _ in payloads]
        messages = [Message(route, (each,), payload, origin) for each, payload in zip(addresses, payloads, strict=True)]
        for message in messages:
            check_message(message)
        worker = route[0] if route and self._node.is_registered(route[0]) else None
        with self._node.batch():
            for address, message in zip(addresses, messages, strict=True):
                ask = self._open[address] = Ask(address, route, worker, deadline_s)
                asks.append(ask)
                if self._node.deliver(message) is None:
                    ask.answer = ask.answer or AskRefused(
                        "no worker or transport of this node takes the request", format_route(route)
                    )
        return asks

    async def answers(self, asks: Sequence[Ask]) -> list[Message | AskTimedOut | AskRefused]:
        """Waits until all requests have ended. Returns in order their answers, or the errors that ended them."""
        waits = False
        try:
            for ask in asks:
                if ask.answer is None:
                    waits = True
                    self._watch_within(max(0.0, ask.deadline_s - trio.current_time()))
                    ask.task = current_task()
                    await wait_task_rescheduled(ask.forget)
            # A worker that answers at once does so before `send_all` returns. Tasks that ask only such workers must
            # still let the others run.
            if not waits:
                self._at_once += 1
                if self._at_once % AT_ONCE_MAX == 0:
                    await self._node.give_way()
        finally:
            for ask in asks:
                self._open.pop(ask.address, None)
        return [ask.answer for ask in asks if ask.answer is not None]

    def take(self, message: Message) -> bool:
        """Ends the request to whose return address the message goes. Returns False if there is none."""
        ask = self._open.pop(message.onward_route[0], None)
        if ask is not None:
            ask.end(message)
        return ask is not None

    def _watch_within(self, delay_s: float) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._node.call_later(min(LOOK_S, delay_s), self._watch)

    def _watch(self) -> None:
        self._is_watching = False
        now_s = trio.current_time()
        for address, ask in list(self._open.items()):
            error: AskTimedOut | AskRefused | None = None
            if ask.deadline_s <= now_s:
                error = AskTimedOut(f"no answer in time from {format_route(ask.route)}")
            elif ask.worker is not None and not self._node.is_registered(ask.worker):
                error = AskRefused("the worker or the connection has ended", format_route(ask.route))
            if error is not None:
                del self._open[address]
                ask.end(error)
        if self._open:
            self._watch_within(LOOK_S)


def _checked(answer: Message | AskTimedOut | AskRefused, route: Route) -> Message:
    if not isinstance(answer, Message):
        raise answer
    if ERROR.is_in(answer.payload):
        try:
            reason = ERROR.decode_response(answer.payload).reason
        except ProtocolError:
            return answer
        raise AskRefused(reason.removeprefix(REFUSAL).removeprefix(FAILURE), format_route(route))
    return answer
