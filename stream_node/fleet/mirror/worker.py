"""MirrorWorker: takes the requests of operators about mirrors. `stream_node.fleet.mirror.service` serves them."""

from __future__ import annotations

from collections.abc import Callable

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.identity.rules.rights import Demand, Right, to_follow, to_replace
from ockam.protocol import ProtocolError, error_payload
from stream_node.fleet.mirror.protocol import MIRRORS, MirrorAction, MirrorRequest
from stream_service.mirroring import refusal_of_source
from stream_service.names import refusal_of_name


class MirrorWorker(Worker):
    def __init__(
        self,
        serve: Callable[[Message, MirrorRequest, Callable[[bytes], None]], None],
        sources: Callable[[str], list[tuple[str, str]]],
    ) -> None:
        """serve: serves a request and calls the function with the payload of the answer. Raises ProtocolError. sources:
        returns the nodes and the names of the sources of a stream."""
        self._serve = serve
        self._sources = sources

    def demand(self, message: Message) -> Demand | list[Demand]:
        request = MIRRORS.decode_request(message.payload)
        _check(request)
        name = request.stream_name
        # The node calls the source in its own name, so the sender needs the rights for what it does there.
        match request.action:
            case MirrorAction.STATUS:
                return Demand(Right.OPERATE | Right.ADMIN, name or None)
            case MirrorAction.ADD:
                return to_follow(name, request.source, request.source_name or name)
            case MirrorAction.PROMOTE:
                return to_replace(name, self._sources(name))
            case MirrorAction.REMOVE:
                return Demand(Right.ADMIN, name)

    def handle(self, message: Message) -> None:
        try:
            request = MIRRORS.decode_request(message.payload)
            _check(request)
            answer = self.context.guard(lambda payload: self.reply(message, payload))
            self._serve(message, request, answer)
        except ProtocolError as error:
            self.reply(message, error_payload(str(error)))

    def failure_payload(self, message: Message, reason: str) -> bytes | None:
        return error_payload(reason)


def _check(request: MirrorRequest) -> None:
    if request.action is MirrorAction.STATUS:
        return
    for name in (request.stream_name, request.source_name or request.stream_name):
        refusal = refusal_of_name(name)
        if refusal is not None:
            raise ProtocolError(refusal)
    if request.action is MirrorAction.PROMOTE and not request.force and not request.promotion_id:
        raise ProtocolError("a promotion needs an id, by which its end is told from that of an earlier one")
    if request.source_goes_on and not (request.action is MirrorAction.PROMOTE and request.force):
        raise ProtocolError("only a forced promotion can leave the source as it is")
    if request.action is MirrorAction.ADD:
        refusal = refusal_of_source(request.source)
        if refusal is not None:
            raise ProtocolError(refusal)
