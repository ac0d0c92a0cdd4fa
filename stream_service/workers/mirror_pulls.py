"""MirrorPulls: takes the requests of mirrors (`node/stream_mirror/1`) to one stream. `workers.pulls` answers them.

A mirror whose messages do not continue those of this stream is told so, and gets no messages.
"""

from __future__ import annotations

from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.protocol import ProtocolError, failed_payload
from stream_service.mirror_operations import load_history
from stream_service.mirroring import MIRROR, MirrorPull, has_parted
from stream_service.workers.pulls import PullQueue
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_storage.contract import Do
from stream_storage.history import History

WAITING_MAX = 1_000
"""The largest number of requests that wait until the history of the stream has been read."""


class MirrorPulls:
    """The requests of mirrors to one stream. Invariant: requests are in `_waiting` only while the history of the stream
    is being read."""

    def __init__(
        self,
        worker: Worker,
        identity: tuple[str, int],
        bounds: StreamBounds,
        services: StreamServices,
        pulls: PullQueue,
    ) -> None:
        self._worker = worker
        self._identity = identity
        self._services = services
        self._bounds = bounds
        self._pulls = pulls
        self._waiting: list[tuple[Message, MirrorPull]] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def receive(self, message: Message) -> None:
        """Takes a request, which is answered later. Raises ProtocolError if it is not valid, or too many wait."""
        request = MIRROR.decode_request(message.payload)
        if self._bounds.history:
            self._add(message, request)
            return
        if len(self._waiting) >= WAITING_MAX:
            raise ProtocolError(f"{WAITING_MAX} mirrors of this stream wait already")
        self._waiting.append((message, request))
        if len(self._waiting) == 1:
            loaded = self._worker.context.guard(self._loaded)
            stream_id = self._bounds.stream_id
            self._services.storage.submit_write(Do(lambda session: load_history(session, stream_id), loaded))

    def _loaded(self, operation: Do[History]) -> None:
        waiting, self._waiting = self._waiting, []
        if operation.error is not None:
            payload = failed_payload(f"the history of the stream cannot be read: {operation.error}")
            for message, _ in waiting:
                self._worker.reply(message, payload)
            return
        self._bounds.learn_history(operation.result)
        for message, request in waiting:
            self._add(message, request)
        self._pulls.go_on()

    def _add(self, message: Message, request: MirrorPull) -> None:
        if request.follower is not None:
            self._services.mirror_seen(self._identity, message.origin, request.follower)
        ours = (self._bounds.history, self._bounds.next_index, self._bounds.is_mirror)
        self._pulls.add_mirror(message, request, has_parted=has_parted(*ours, request.entry_id, request.start))
