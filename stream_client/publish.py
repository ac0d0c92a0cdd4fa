"""Publishers: push many messages without waiting for each confirm, to one or to all partitions of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

from stream_client.arguments import BytesLike, HeadersLike, to_bytes, to_headers, to_key
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import Push
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import InvalidArgument
from stream_client.partitions import ByPartition, raise_failed
from stream_client.session import ClientSession

LOOKS = 4
"""A publisher checks this many times within the client's `answer_timeout_s` whether the node answers its pushes."""
UNSENT_BYTES_MAX = 64 * 1024
"""While the connection has more unsent bytes than this, `Publisher.push` lets the client send before it encodes another
message, unless the shell still gathers pushes to many streams."""


class Publisher:
    """Pushes messages to one partition without waiting for each confirm. A context manager.

    At most `window` pushes are unanswered at a time. The end of a block without an exception waits until every push is
    answered. It then raises PushesFailed if some pushes have failed and the program has not asked for their results
    (`wait`, `Push.result`). With `keep_failed` it never raises PushesFailed.

    If the node answers no push for the client's `answer_timeout_s`, every unanswered push fails with RequestTimeout. A
    blocking publisher checks this only inside calls of the program. A publisher without this timeout waits for ever.
    """

    def __init__(
        self,
        session: ClientSession,
        handle: PartitionHandle,
        window: int,
        sequences: SequenceMachine | None,
        keep_failed: bool,
    ) -> None:
        if window < 1:
            raise InvalidArgument(f"a window of {window}; at least 1 push must be allowed on its way")
        self._session = session
        self._handle = handle
        self._window = window
        self._sequenced = sequences is not None
        self._queue = session.core.open_queue(handle, sequences)
        self._timeout_s = session.answer_timeout_s
        self._is_watched = False
        self._cancel_look: Callable[[], None] = lambda: None
        # How many answers had come at the last check, and how many checks ago that number last changed.
        self._answers = self._looks = 0
        if keep_failed:
            self._queue.failed = None

    def __repr__(self) -> str:
        where = f"{self._handle.name!r}, partition {self._handle.partition}"
        return f"<Publisher of {where}: {self.unconfirmed} of {self._window} unconfirmed>"

    @property
    def failed(self) -> Sequence[Push]:
        """The failed pushes for whose result the program has not asked. With `keep_failed` they are not collected."""
        return tuple(push for push in self._queue.failed or () if not push.taken)

    def close(self) -> None:
        """Ends the publisher: the program must not push after this. Earlier pushes still get their answers."""
        self._session.core.streams.close_queue(self._handle, self._queue)
        # The timer would keep this publisher in memory for a part of the client's `answer_timeout_s`.
        if not self._queue.pushes:
            self._cancel_look()

    @property
    def unconfirmed(self) -> int:
        """The number of unanswered pushes, including those that are not sent yet."""
        return len(self._queue.pushes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error in the block, its pushes still go on, but the block does not wait for them.
        try:
            if kind is None:
                await self.flush()
        finally:
            self.close()
        if kind is None:
            raise_failed(self.failed)

    async def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> Push:
        """Sends one message, and returns its Push without waiting. The arguments are those of `Stream.push`.

        If `window` pushes are unanswered, this method first waits until one of them is answered. `Push.done` becomes
        true when the answer arrives. `wait`, and in an async program also `await push`, waits for it.
        """
        push = self._push(data, key, headers)
        while push is None:
            await self._pause()
            push = self._push(data, key, headers, has_paused=True)
        return push

    def _push(
        self, data: BytesLike, key: BytesLike | None, headers: HeadersLike, *, has_paused: bool = False
    ) -> Push | None:
        """Sends one message; returns None, and sends nothing, if `_pause` must come first."""
        queue, session = self._queue, self._session
        # Most messages are bytes already, and this test is cheaper than the call.
        if data.__class__ is not bytes:
            data = to_bytes(data, "the data of a message")
        # A full window waits for confirms, so unconfirmed pushes take a bounded amount of memory.
        if len(queue.pushes) >= self._window:
            return None
        # Without a pause here, a program that never waits would encode its whole window before the first byte is sent.
        if session.core.connection.outgoing_bytes > UNSENT_BYTES_MAX and not has_paused and not session.shell.gathers():
            return None
        # An idempotent publisher numbers its messages, and only the protocol of keyed pushes has room for the numbers.
        if self._sequenced or key is not None or headers:
            push: Push = queue.push_keyed(data, to_key(key), to_headers(headers))
        else:
            push = queue.push(data)
        # The timer runs only while pushes are unanswered, so that an idle publisher costs nothing.
        if not self._is_watched:
            self._watch()
        return push

    async def _pause(self) -> None:
        """Waits until the window has room; if it has room already, lets the client send what it has to send."""
        queue, shell = self._queue, self._session.shell
        if len(queue.pushes) < self._window:
            await shell.yield_control()
        while len(queue.pushes) >= self._window:
            await shell.wait(queue.room(), gathers=queue.is_on_its_way)

    async def wait(self, push: Push) -> int:
        """Waits until one push is answered, and returns its `Push.index`. Raises the error of a failed push."""
        try:
            await self._session.finished(push, None)
        finally:
            push.taken = True
        return push.index

    async def push_many(self, messages: Iterable[BytesLike]) -> list[int]:
        """Stores messages in order, waits for the answers, and returns the indexes. Raises PushesFailed."""
        pushes = []
        for data in messages:
            pushes.append(await self.push(data))
            # A blocking client sends only inside calls, and the program may need long for the next message.
            self._session.shell.send_lagging()
        await self.flush()
        # The caller gets these failures here as one error, so the end of the block must not report them again.
        failed = [push for push in pushes if push.error is not None]
        for push in failed:
            push.taken = True
        raise_failed(failed)
        return [push.index for push in pushes]

    async def flush(self) -> None:
        """Waits until every push of this publisher is confirmed or has failed."""
        while self._queue.pushes:
            await self._session.shell.wait(self._queue.room())

    def _watch(self) -> None:
        """Checks at intervals whether the node answers, until no push is unanswered."""
        if self._timeout_s is not None and self._queue.pushes:
            self._is_watched = True
            self._answers, self._looks = self._queue.answers, 0
            self._cancel_look = self._session.shell.call_later(self._timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        queue, timeout_s = self._queue, self._timeout_s
        assert timeout_s is not None
        # An answer that finishes no push counts too: a node that cannot tell whether a push is stored is not silent.
        self._looks = self._looks + 1 if queue.answers == self._answers else 0
        self._answers = queue.answers
        # A blocking client's timer may be late. So several checks in a row must see no answer, not one at the end of
        # the time.
        if self._looks == LOOKS:
            self._looks = 0
            queue.fail_all(self._session.silence(timeout_s))
        if queue.pushes:
            self._cancel_look = self._session.shell.call_later(timeout_s / LOOKS, self._look)
        else:
            self._is_watched = False


class PartitionedPublisher(ByPartition[Publisher]):
    """Pushes each message to the partition of its key, or to the partitions in turn. A context manager.

    Each partition has its own window. The end of the block waits and raises as the end of a `Publisher` block does.
    """

    def __repr__(self) -> str:
        partitions = f"{len(self._items)} partitions"
        return f"<PartitionedPublisher of {self._name!r}, {partitions}: {self.unconfirmed} unconfirmed>"

    @property
    def unconfirmed(self) -> int:
        """The number of unanswered pushes in all partitions together."""
        return sum(publisher.unconfirmed for publisher in self._items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self._stop()
        if kind is None:
            raise_failed([push for publisher in self._items for push in publisher.failed])

    async def push(
        self,
        data: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = (),
        partition_key: BytesLike | None = None,
    ) -> Push:
        """Sends one message to the partition of its key. Messages without a key go to the partitions in turn.

        partition_key: chooses the partition instead of the key, and is not stored. Others: see `Publisher.push`.

        Raises StreamNotFound if the partition of the key was deleted.
        """
        key, partition_key = to_key(key), to_key(partition_key, "a partition key")
        return await self._chosen(key, partition_key).push(data, key=key, headers=headers)

    async def flush(self) -> None:
        """Waits until every push to every partition is confirmed or has failed."""
        for publisher in self._items:
            await publisher.flush()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        for publisher in self._items:
            publisher.close()
