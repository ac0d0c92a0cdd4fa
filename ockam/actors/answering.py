"""AnsweringWorker: the base class of the workers that answer each request by a protocol of this project."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.protocol import ProtocolError, error_payload

TASKS_MAX = 100
"""The most tasks of one `TaskAnsweringWorker`. A task can last for seconds if it waits for something that hangs."""


class AnsweringWorker(Worker):
    """A worker that answers every refused request with an `error`. Override `answer`."""

    def answer(self, message: Message) -> None:
        """Answers one request, now or later. Raises ProtocolError if it is not valid or is refused."""
        raise NotImplementedError

    def handle(self, message: Message) -> None:
        try:
            self.answer(message)
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)


class TaskAnsweringWorker(AnsweringWorker):
    """An AnsweringWorker that answers in tasks of a nursery, at most TASKS_MAX at the same time."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._tasks = 0

    def start_task(self, answer: Callable[[], Awaitable[None]]) -> None:
        """Begins a task that answers one request. Raises ProtocolError if too many tasks run."""
        if self._tasks >= TASKS_MAX:
            raise ProtocolError(f"{TASKS_MAX} such requests are being answered; ask again later")
        self._tasks += 1
        self._nursery.start_soon(self._run_task, answer)

    async def _run_task(self, answer: Callable[[], Awaitable[None]]) -> None:
        try:
            await answer()
        finally:
            self._tasks -= 1
