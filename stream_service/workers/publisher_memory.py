"""PublisherMemory: the state of one stream's publishers, in memory and in the table of publishers.

The table is brought up to date every NOTED_EVERY messages, so that a start reads few messages and forgets no publisher.
The worker of the stream decides when numbers are read: it may store nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog

from ockam.actors.message import Message
from ockam.actors.worker import Context
from ockam.identity.gate import DENIED
from ockam.protocol import ProtocolError
from stream_service.extensions import RichPush
from stream_service.publisher_rows import KnownSequences, load_sequences, note_publishers
from stream_service.workers.sequence_machine import PublisherSequences
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_storage.contract import Do

NOTED_EVERY = 10_000
"""The number of messages of a stream after which the rows of its publishers are written anew."""

logger = structlog.get_logger(__name__)


class PublisherMemory:
    """The sequence numbers of one stream's publishers. machine: decides which pushes are new; None until a
    push has a number."""

    __slots__ = ("_bounds", "_is_plain", "_noted_index", "_services", "machine")

    def __init__(self, bounds: StreamBounds, services: StreamServices) -> None:
        self._bounds = bounds
        self._services = services
        self._is_plain = False
        self._noted_index = 0
        self.machine: PublisherSequences | None = None

    def load(self, done: Callable[[Do[KnownSequences]], None]) -> None:
        """Submits a read of the stored numbers. done: passes the result to `loaded`."""
        work = partial(load_sequences, stream_id=self._bounds.stream_id)
        self._services.storage.submit_read(Do(work, done))

    def loaded(self, known: KnownSequences) -> PublisherSequences:
        self.machine = PublisherSequences(known.rows, begin=known.begin, is_exact=known.is_exact)
        self.machine.remember(known.found)
        # From now on there are publishers to note.
        self._is_plain = False
        return self.machine

    def forget(self) -> None:
        self.machine = None
        self._is_plain = False

    def claim(self, message: Message, request: RichPush) -> None:
        """Raises ProtocolError if, under rules, the publisher id of a push belongs to another identity."""
        if self.machine is None or request.sequence is None or not self._services.has_rules:
            return
        identity = str(message.origin.identity)
        if not self.machine.claim(request.sequence.publisher_id, identity):
            raise ProtocolError(
                f"{DENIED}this publisher id belongs to another identity than {identity}, which used it first; take "
                "another id"
            )

    def note(self, context: Context) -> None:
        """Brings the stored rows up to date, if NOTED_EVERY messages were stored since the last time."""
        end = self._bounds.next_index
        if end // NOTED_EVERY == self._noted_index // NOTED_EVERY or self._is_plain:
            return
        self._noted_index = end
        machine, makes_mark = self.machine, self._bounds.is_mirror
        rows = None if machine is None else machine.changes()

        def noted(operation: Do[bool]) -> None:
            if operation.error is not None:
                # The next call writes these rows, too.
                logger.warning("publishers_not_noted", reason=str(operation.error))
            elif machine is not None and rows is not None:
                machine.noted(end, rows)
            else:
                self._is_plain = operation.result and self.machine is None

        work = partial(
            note_publishers,
            stream_id=self._bounds.stream_id,
            end=end,
            rows=rows,
            times=self._services.clock.times(),
            makes_mark=makes_mark,
        )
        self._services.storage.submit_write(Do(work, context.guard(noted)))
