"""Streams and publishers of the blocking client: what `streams` and `publisher` do, without `await`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

from stream_client import publish as publishers
from stream_client import streams as async_form
from stream_client.arguments import BytesLike, HeadersLike
from stream_client.blocking.consumers import (
    Consumer,
    Follower,
    Membership,
    PartitionedConsumer,
    Positions,
    SharedConsumer,
)
from stream_client.consume.consumption import ConsumerArguments, with_options_shown
from stream_client.consume.follower import PAGE_MESSAGES, OnHole
from stream_client.consume.reader import Page
from stream_client.core.requests import Push
from stream_client.publish import WINDOW
from stream_client.shell.blocking_shell import BlockingShell
from stream_client.shell.driving import drive
from stream_client.shell.session import Session
from stream_client.starts import FIRST, BeforeLike, StartLike
from stream_service.copying import CopyResponse
from stream_service.extensions import Retention, RichMessage, StreamInfo, TruncateResponse
from stream_service.protocol import StreamMessage


class Stream:
    """One partition of one stream. inner: its async form."""

    def __init__(self, inner: async_form.Stream) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def partition(self) -> int:
        return self.inner.partition

    @property
    def unconfirmed(self) -> int:
        """How many pushes, of all publishers of this client, have no answer."""
        return self.inner.unconfirmed

    def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> int:
        """Store one message; its index, once it is on disk. Raises PushFailed and other ClientErrors.

        data: bytes, or str, which is stored in UTF-8. key, headers: stored beside the data, by a protocol of our own
        (`node/stream_push/1`); headers are a dictionary, or a list of (name, value).
        """
        return drive(self.inner.push(data, key=key, headers=headers))

    def pull(self, index: int = 0, limit: int = PAGE_MESSAGES) -> Sequence[StreamMessage]:
        """Up to `limit` messages from `index` on (0: from the earliest stored); empty where there are none yet."""
        return drive(self.inner.pull(index, limit))

    def pull_page(self, start: StartLike = FIRST, limit: int = PAGE_MESSAGES, *, wait_s: float = 0.0) -> Page:
        """Messages with time, key and headers, and where the stream begins and ends (`node/stream_pull/1`).

        wait_s: how long the node may hold the answer while there is nothing; it bounds that by 5 s.
        """
        return drive(self.inner.pull_page(start, limit, wait_s=wait_s))

    def follow(
        self,
        start: StartLike = FIRST,
        *,
        stop_at_end: bool = False,
        page_messages: int = PAGE_MESSAGES,
        on_hole: OnHole | None = None,
    ) -> Follower:
        """Iterate over the messages from there on, for ever, or until the stream has no more (`stop_at_end`).

        A time, LAST and NEW need a node that has our own `node/stream_pull/1`; others raise RequestRefused.
        """
        return Follower(self.inner.follow(start, stop_at_end=stop_at_end, page_messages=page_messages, on_hole=on_hole))

    @with_options_shown
    def consumer(self, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> Consumer:
        """Iterate from the saved position on, and save how far it came.

        positions: the name under which the node keeps the position, or an object that keeps it (SavedIndexes).
        page_messages: how many to pull at once. save_messages: save after so many, at the latest; None: a page.
        save_interval_s: and after this time. on_hole: called with partition, first missing index and next index there.
        idle_delay_s: how long to wait before asking again where the node does not hold answers.
        """
        return Consumer(self.inner, positions, **options)

    def publisher(
        self,
        window: int = WINDOW,
        *,
        idempotent: bool = False,
        publisher_id: BytesLike | None = None,
        first_number: int = 0,
        keep_failed: bool = False,
    ) -> Publisher:
        """Push without waiting for each confirm; the rest as `stream_client.Stream.publisher`."""
        return Publisher(
            self.inner.publisher(
                window,
                idempotent=idempotent,
                publisher_id=publisher_id,
                first_number=first_number,
                keep_failed=keep_failed,
            ),
            self.inner.session,
        )

    def copy_in(self, index: int, messages: Sequence[RichMessage]) -> CopyResponse:
        """Store messages of another stream with their times, the first at `index`, which is this stream's next one or
        where a stream without any is to begin (`node/stream_copy/1`). One request: a page of some MiB at most."""
        return drive(self.inner.copy_in(index, messages))

    def info(self) -> StreamInfo:
        """Where it begins and ends, its size, its times, its retention."""
        return drive(self.inner.info())

    def truncate(self, before: BeforeLike) -> TruncateResponse:
        """Delete the messages before an index or a time."""
        return drive(self.inner.truncate(before))

    def set_retention(self, retention: Retention | None) -> StreamInfo:
        """What to keep at most; None returns the stream to the node's default."""
        return drive(self.inner.set_retention(retention))

    def delete(self) -> int:
        """Delete the stream-partition with all that it stores; how many messages that were. This object ends too."""
        return drive(self.inner.delete())

    def find_index(self, start: StartLike) -> int:
        """The index that a start means just now: of its first message, or where the next one will be."""
        return drive(self.inner.find_index(start))


class PartitionedStream:
    """Some or all partitions of one stream. inner: its async form."""

    def __init__(self, inner: async_form.PartitionedStream) -> None:
        self.inner = inner
        self.partitions = tuple(Stream(stream) for stream in inner.partitions)

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def name(self) -> str:
        return self.inner.name

    def partition_for(self, key: BytesLike) -> Stream:
        """The partition that messages with this key go to. Raises StreamNotFound where that one is missing."""
        return Stream(self.inner.partition_for(key))

    def get_partition(self, partition: int) -> Stream:
        """The partition of that number. Raises StreamNotFound where it is missing."""
        return Stream(self.inner.get_partition(partition))

    @property
    def count(self) -> int:
        """How many partitions the stream has, those missing too; keys are spread over so many."""
        return self.inner.count

    def push(
        self,
        data: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = (),
        partition_key: BytesLike | None = None,
    ) -> int:
        """Store a message in the partition of its key, or in the next partition where it has none; its index there.

        key: stored with the message. partition_key: chooses the partition in its place, and is not stored.
        """
        return drive(self.inner.push(data, key=key, headers=headers, partition_key=partition_key))

    def publisher(
        self, window: int = WINDOW, *, idempotent: bool = False, keep_failed: bool = False
    ) -> PartitionedPublisher:
        """Push to partitions by key, or in turn; a window for each. The rest as `Stream.publisher`."""
        inner = self.inner.publisher(window, idempotent=idempotent, keep_failed=keep_failed)
        return PartitionedPublisher(inner, self.inner.partitions[0].session)

    @with_options_shown
    def consumer(
        self,
        positions: Positions | str,
        *,
        partitions: Sequence[int] | None = None,
        **options: Unpack[ConsumerArguments],
    ) -> PartitionedConsumer:
        """Iterate over all partitions, or those named, each from its saved position; the rest as `Stream.consumer`."""
        return PartitionedConsumer(self.inner, positions, partitions=partitions, **options)

    @with_options_shown
    def shared_consumer(self, membership: Membership | str, **options: Unpack[ConsumerArguments]) -> SharedConsumer:
        """Iterate over the partitions that this member gets, in company with the other members of a consumer group.

        membership: the name of the group, or a LeaseMember. The rest as `Stream.consumer`.
        """
        return SharedConsumer(self.inner, membership, **options)

    def info(self) -> list[StreamInfo]:
        """Of each partition, as `Stream.info`."""
        return drive(self.inner.info())

    def delete(self) -> int:
        """Delete every partition; how many messages that were."""
        return drive(self.inner.delete())


class Publisher:
    """As `stream_client.Publisher`. A context manager."""

    def __init__(self, inner: publishers.Publisher, session: Session) -> None:
        assert isinstance(session.shell, BlockingShell)
        self._inner = inner
        self._shell = session.shell

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self._inner.__aexit__(kind, error, traceback))

    @property
    def unconfirmed(self) -> int:
        """How many pushes have been sent, or wait to be sent, without an answer."""
        return self._inner.unconfirmed

    @property
    def failed(self) -> Sequence[Push]:
        """Pushes that failed, and whose result nobody has taken; empty where the owner keeps failures."""
        return self._inner.failed

    def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> Push:
        """Send one message, waiting first while the window is full; the result has its `index` once it is `done`."""
        push = drive(self._inner.push(data, key=key, headers=headers))
        self._shell.send_lagging()
        return push

    def wait(self, push: Push) -> int:
        """The index of one push, once it is stored. Raises its error."""
        return drive(self._inner.wait(push))

    def push_many(self, messages: Iterable[BytesLike]) -> list[int]:
        """Store messages in order; their indexes. Raises PushesFailed after all have been answered."""
        return drive(self._inner.push_many(messages))

    def flush(self) -> None:
        """Wait until everything sent has been answered, one way or the other."""
        drive(self._inner.flush())

    def close(self) -> None:
        """No more will be pushed; what is on its way still gets its answer. Safe to repeat."""
        self._inner.close()


class PartitionedPublisher:
    """As `stream_client.PartitionedPublisher`. A context manager."""

    def __init__(self, inner: publishers.PartitionedPublisher, session: Session) -> None:
        assert isinstance(session.shell, BlockingShell)
        self._inner = inner
        self._shell = session.shell

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self._inner.__aexit__(kind, error, traceback))

    @property
    def unconfirmed(self) -> int:
        """How many pushes have no answer, in all partitions."""
        return self._inner.unconfirmed

    def push(
        self,
        data: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = (),
        partition_key: BytesLike | None = None,
    ) -> Push:
        """Send one message to the partition of its key, or to the next partition where it has none.

        key: stored with the message. partition_key: chooses the partition in its place, and is not stored.
        """
        push = drive(self._inner.push(data, key=key, headers=headers, partition_key=partition_key))
        self._shell.send_lagging()
        return push

    def flush(self) -> None:
        """Wait until everything sent has been answered, one way or the other."""
        drive(self._inner.flush())
