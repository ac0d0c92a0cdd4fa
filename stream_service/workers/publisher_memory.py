"""PublisherMemory: what one stream remembers of its publishers, in memory and in the table of publishers.

The table is brought up to date every NOTED_EVERY messages, so that a start has to look at few messages and forgets no
publisher. The worker of the stream decides when numbers are read, since nothing may be stored meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ockam.actors.message import Message
from ockam.actors.worker import Context
from ockam.identity.gate import DENIED
from ockam.protocol import ProtocolError
from stream_service.extensions import RichPush
from stream_service.publisher_operations import LoadSequences, NotePublishers
from stream_service.workers.sequence_machine import PublisherSequences
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices

NOTED_EVERY = 10_000
"""The number of messages of a stream after which the rows of its publishers are written anew."""

logger = structlog.get_logger(__name__)


class PublisherMemory:
    """The numbers of one stream's publishers. machine: knows them; None until a push with a number comes."""

    def __init__(self, bounds: StreamBounds, services: StreamServices) -> None:
        self._bounds = bounds
        self._services = services
        self._is_plain = False
        self._noted_index = 0
        self.machine: PublisherSequences | None = None

    def load(self, done: Callable[[LoadSequences], None]) -> None:
        """Submits a read of the stored numbers. done: passes the operation to `loaded`."""
        self._services.storage.submit_read(LoadSequences(self._bounds.stream_id, done))

    def loaded(self, operation: LoadSequences) -> PublisherSequences:
        self.machine = PublisherSequences(operation.rows, begin=operation.begin, is_exact=operation.is_exact)
        self.machine.remember(operation.found)
        return self.machine

    def forget(self) -> None:
        self.machine = None
        self._is_plain = False

    def claim(self, message: Message, request: RichPush) -> None:
        """Raises ProtocolError if the publisher id of a push belongs to another identity. Without rules, none does."""
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

        def noted(operation: NotePublishers) -> None:
            if operation.error is not None:
                # The next one writes these rows, too.
                logger.warning("publishers_not_noted", reason=str(operation.error))
            elif machine is not None and rows is not None:
                machine.noted(end, rows)
            else:
                self._is_plain = operation.is_plain and self.machine is None

        times = self._services.clock.times()
        self._services.storage.submit_write(
            NotePublishers(self._bounds.stream_id, end, rows, times, context.guard(noted), makes_mark=makes_mark)
        )
