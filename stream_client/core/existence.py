"""Existence: asks the stream service whether a partition that sends no answers still exists.

A node silently drops messages to an unused address, such as that of a deleted partition. So silence proves nothing, and
the client asks with a `node/stream_list/1`. The error of a service without this protocol is ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from ockam.actors.address import Address, Route
from stream_client.arguments import encoded
from stream_client.core.calls import Call, Calls, answer_of
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import StreamNotFound, UnexpectedAnswer
from stream_service.extensions import LIST, ListRequest, StreamKey


class Existence:
    """The unanswered questions whether a partition exists, one for each. `on_missing` is called if it does not."""

    def __init__(
        self,
        calls: Calls,
        service: Route,
        new_address: Callable[[], Address],
        on_missing: Callable[[PartitionHandle], None],
    ) -> None:
        self._calls = calls
        self._service = service
        self._new_address = new_address
        self._on_missing = on_missing
        self._asked: set[PartitionHandle] = set()

    def ask(self, handle: PartitionHandle) -> None:
        """Asks the service whether this partition exists. If not, `on_missing` is called later. Safe to repeat."""
        if handle in self._asked:
            return
        self._asked.add(handle)
        after = StreamKey(handle.name, handle.partition - 1) if handle.partition else None
        request = encoded(LIST, ListRequest(0, handle.name, after, 1))
        call = Call(self._service, request, 1, self._new_address())
        call.when_done(lambda: self._answered(handle, call))
        self._calls.add(call)

    def _answered(self, handle: PartitionHandle, call: Call) -> None:
        self._asked.discard(handle)
        if call.error is not None:
            return
        try:
            listed = answer_of(call, LIST).streams
        except UnexpectedAnswer:
            return
        if all((info.stream_name, info.partition) != (handle.name, handle.partition) for info in listed):
            self._on_missing(handle)


def not_there(handle: PartitionHandle) -> StreamNotFound:
    return StreamNotFound(
        f"the node has no partition {handle.partition} of {handle.name!r} any more: it has been deleted"
    )
