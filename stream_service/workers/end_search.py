"""EndSearch: finds the end of a stream again, after messages that may be stored or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ockam.actors.worker import Context
from stream_service.operations import find_end
from stream_service.stored import StoredStream
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_services import StreamServices
from stream_storage.contract import Do
from stream_storage.errors import CommitUnsettled, DatabaseLost, StorageClosed


class EndSearch:
    """The search of one stream. While it is under way, the worker goes on as if the messages in doubt were not stored.
    That is safe, because the storage refuses an append that does not begin at the end.

    is_under_way: whether the end is not known yet, or is found and not adopted.

    Invariant: at most one operation of the search is submitted or planned, and no append is done before it.
    """

    __slots__ = ("_bounds", "_found", "_services", "is_under_way")

    def __init__(self, bounds: StreamBounds, services: StreamServices) -> None:
        self.is_under_way = False
        self._bounds = bounds
        self._services = services
        self._found: StoredStream | None = None

    def begin(self, context: Context, on_found: Callable[[], None]) -> None:
        """Begins the search, unless it is under way. on_found: called when the end differs from the worker's."""
        if not self.is_under_way:
            self.is_under_way = True
            self._submit(context, on_found)

    def take(self) -> StoredStream | None:
        """Ends the search and returns the stream that was found; None if nothing is found yet."""
        found, self._found = self._found, None
        if found is not None:
            self.is_under_way = False
        return found

    def _submit(self, context: Context, on_found: Callable[[], None]) -> None:
        def done(operation: Do[StoredStream]) -> None:
            if isinstance(operation.error, CommitUnsettled | DatabaseLost):
                again = self._services.limits.error_delay_s
                context.call_later(again, lambda: self._submit(context, on_found))
            elif operation.error is not None:
                raise operation.error
            elif operation.result.record.next_index == self._bounds.next_index:
                self.is_under_way = False
            else:
                self._found = operation.result
                on_found()

        try:
            # This is a write, so it comes after the transaction that is in doubt, and before all later appends.
            work = partial(find_end, stream_id=self._bounds.stream_id)
            self._services.storage.submit_write(Do(work, context.guard(done)))
        except StorageClosed:
            # The node is stopping.
            return
