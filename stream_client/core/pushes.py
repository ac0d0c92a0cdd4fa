"""Push: a message being pushed. PendingResult: the base class of every result that a program waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from stream_client.errors import ClientError, PushFailed, RequestRefused
from stream_service.extensions import RICH_PUSH, Header, RichPush
from stream_service.extensions import Sequence as Number
from stream_service.limits import StreamLimits
from stream_service.push_codec import encode_push

LIMITS = StreamLimits()
"""The default limits of a node. A message above them is refused before it is sent (docs/wire.md §3)."""
ENVELOPE_BYTES = 256
"""The bytes reserved in a push for all but the message: protocol, request id, publisher id, sequence number, sizes."""
PLAIN_BYTES_MAX = LIMITS.message_bytes_max - ENVELOPE_BYTES
HEADER_BYTES = 8
"""The bytes reserved for the sizes of one header's name and value."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingResult:
    """A result that arrives later. `done`: whether it has arrived. `error`: why there is no result, or None."""

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: ClientError | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the result is done: at once if it is already done."""
        if self.done:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Cancels a `when_done`: `callback` is not called any more. Safe to repeat."""
        if self._callbacks is not None and callback in self._callbacks:
            self._callbacks.remove(callback)

    def finish(self, error: ClientError | None = None) -> None:
        """Marks the result as done, with or without an error, and calls all callbacks. Later calls have no effect."""
        if self.done:
            return
        self.error = error
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback()


class Push(PendingResult):
    """A message that is being pushed to a partition.

    index: the index of the message when it is stored; -1 before. It also stays -1 if the node has stored the message
        earlier and does not remember its index.
    taken: whether the program has asked for the result.
    """

    __slots__ = ("data", "index", "partition", "taken")

    def __init__(self, data: bytes, partition: int) -> None:
        self.done = False
        self.error = None
        self._callbacks = None
        self.data = data
        self.partition = partition
        self.index = -1
        self.taken = False

    def __repr__(self) -> str:
        what = f"Push of {len(self.data)} bytes to partition {self.partition}"
        if not self.done:
            return f"<{what}, without an answer>"
        return f"<{what}, {f'stored at {self.index}' if self.error is None else f'failed: {self.error}'}>"

    def __await__(self) -> Generator[Any, Any, int]:
        """Waits until the push is answered, and returns `index` or raises the push's error. Async clients only."""
        return self._answered().__await__()

    async def _answered(self) -> int:
        import anyio

        answered = anyio.Event()
        self.when_done(answered.set)
        try:
            await answered.wait()
        finally:
            self.forget(answered.set)
        return self.result()

    def result(self) -> int:
        """Returns `index`. Raises the push's error, or ValueError if there is no answer yet."""
        if self.error is not None:
            self.taken = True
            raise self.error.with_traceback(None)
        if not self.done:
            raise ValueError("this push has no answer yet: wait for it, or flush its publisher")
        return self.index

    def refusal(self) -> RequestRefused | None:
        """Returns the error for a message that no node would accept. None: the message can be sent."""
        return _too_large("a message", len(self.data), PLAIN_BYTES_MAX)

    def payload(self, request_id: int) -> bytes:
        return encode_push(request_id, self.data)


class PushesFailed(PushFailed):
    """Some pushes of a publisher have failed, and the program has not asked for their results.

    pushes: the failed pushes, each with its error.
    fault, retriable: taken from the first error that is not retriable; from the first error if all are retriable.
    in_doubt: whether any of the errors is in doubt.
    """

    def __init__(self, pushes: Iterable[Push]) -> None:
        self.pushes: Sequence[Push] = tuple(pushes)
        errors = [push.error for push in self.pushes if push.error is not None]
        decisive = next((error for error in errors if not error.retriable), errors[0])
        self.fault, self.retriable = decisive.fault, decisive.retriable
        doubts = sum(error.in_doubt for error in errors)
        self.in_doubt = doubts > 0
        what = "1 message was" if len(errors) == 1 else f"{len(errors)} messages were"
        may = f" ({doubts} of them may have been stored)" if doubts and len(errors) > 1 else ""
        super().__init__(f"{what} not confirmed{may}; the first: {errors[0]}")


class Epoch:
    """A publisher id and the sequence numbers used with it.

    open: whether the node has accepted a push with this id, so that it knows the first number.
    failed: whether a number is missing, so that the node accepts no later number.
    """

    __slots__ = ("failed", "next_number", "open", "publisher_id")

    def __init__(self, publisher_id: bytes, next_number: int) -> None:
        self.publisher_id = publisher_id
        self.next_number = next_number
        self.open = False
        self.failed = False


class KeyedPush(Push):
    """A push with a key and headers. An idempotent publisher also gives it a sequence number (`sequence_machine`).

    epoch: the publisher id that the number belongs to; None without a number.
    skipped: whether the node refused the push as out of order while an earlier push was unanswered.
    sent_again: whether the push was sent again after a reconnect, so that several copies can be on their way.
    in_doubt: whether the node reported a failure after which the message is perhaps stored.
    is_duplicate: whether the node had stored the message before, so that it was not stored again.
    """

    __slots__ = ("epoch", "headers", "in_doubt", "is_duplicate", "key", "number", "sent_again", "skipped")

    def __init__(self, data: bytes, partition: int, key: bytes | None, headers: Sequence[Header]) -> None:
        super().__init__(data, partition)
        self.key = key
        self.headers = list(headers)
        self.epoch: Epoch | None = None
        self.number = 0
        self.skipped = self.sent_again = self.in_doubt = self.is_duplicate = False

    def refusal(self) -> RequestRefused | None:
        try:
            names_bytes = sum(len(header.name.encode()) for header in self.headers)
        except UnicodeEncodeError as error:
            return RequestRefused(f"a header's name cannot be written in UTF-8: {error.reason}")
        key_bytes = len(self.key or b"")
        headers_bytes = names_bytes + sum(len(header.value) for header in self.headers)
        beside_bytes = key_bytes + headers_bytes + HEADER_BYTES * len(self.headers)
        return (
            _too_large("a key", key_bytes, LIMITS.key_bytes_max)
            or _too_large("headers", headers_bytes, LIMITS.headers_bytes_max)
            or _too_large("a message with its key and headers", len(self.data) + beside_bytes, PLAIN_BYTES_MAX)
        )

    def payload(self, request_id: int) -> bytes:
        sequence = None if self.epoch is None else Number(self.epoch.publisher_id, self.number)
        return RICH_PUSH.encode_request(RichPush(request_id, self.data, self.key, self.headers, sequence))


def _too_large(what: str, size_bytes: int, most_bytes: int) -> RequestRefused | None:
    if size_bytes <= most_bytes:
        return None
    return RequestRefused(f"{what} of {size_bytes} bytes; a stream keeps at most {most_bytes}")
