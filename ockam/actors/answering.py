"""AnsweringWorker: the base class of the workers that answer each request by a protocol of this project."""

from __future__ import annotations

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.protocol import ProtocolError, error_payload


class AnsweringWorker(Worker):
    """A worker whose every refusal is an `error`. Override `answer`."""

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
