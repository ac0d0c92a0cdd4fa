"""The objects of the blocking client. Each of them has an object of the async client (`stream_client`), which has the
same name and explains the methods (`driving.Twin`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, Self, TypeVar, Unpack

from index_service.extensions import SavedPosition
from ockam.protocol import Protocol as WireProtocol
from stream_client import admin, connecting, positions, publish, session, streams
from stream_client import client as clients
from stream_client import correspondent as correspondents
from stream_client.arguments import BytesLike, HeadersLike, to_key
from stream_client.blocking.driving import (
    Twin,
    TwinContext,
    TwinIterator,
    blocking,
    like,
    opening,
    same,
    shown,
)
from stream_client.consume import consumer as consumers
from stream_client.consume.page import ConsumerArguments
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import Push
from stream_client.correspondent import RoutedMessage, decode_routed
from stream_client.errors import UnexpectedAnswer
from stream_client.positions import check_keeps_positions
from stream_client.session import Target
from stream_client.share import membership as leasing
from stream_client.share import shared_consumer as sharing
from stream_client.shell.base_shell import BaseShell
from stream_client.shell.dial import run_now
from stream_service.extensions import RichMessage, StreamInfo

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


class Connected(Protocol):
    """The type of an object with a session: a `StreamClient`, or a `Stream` of it."""

    @property
    def session(self) -> ClientSession: ...


class ClientSession(Twin[session.ClientSession]):
    address: str
    core: ClientCore
    shell: BaseShell
    answer_timeout_s: float | None
    answered = blocking(session.ClientSession.answered)

    @like(session.ClientSession.ask)
    def ask(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> A:
        return run_now(self._twin.ask(target, protocol, request))


class Conversation(Twin[session.Conversation]):
    received: deque[bytes]
    opened = blocking(session.Conversation.opened)
    send = blocking(session.Conversation.send)
    send_nowait = same(session.Conversation.send_nowait)
    receive = blocking(session.Conversation.receive)
    close = same(session.Conversation.close)

    @like(session.Conversation.ask)
    def ask(self, protocol: WireProtocol[Q, A], request: Q, timeout_s: float) -> A:
        return run_now(self._twin.ask(protocol, request, timeout_s))


class Positions(Protocol):
    """The interface of an object that saves a consumer's positions: for each partition, the next index to read.
    `SavedIndexes` saves them on the node. A program can write its own class, for example for its database."""

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Returns the saved index of each of these partitions, in order; 0 for a partition without a saved index."""
        ...

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Saves the index of each partition in `indexes`. When this method returns, the indexes are safely stored."""
        ...

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Begins to save the index of each partition in `indexes`, without waiting. A save can be lost."""
        ...


class SavedIndexes(Twin[positions.SavedIndexes]):
    client_id: str
    get = blocking(positions.SavedIndexes.get)
    load = blocking(positions.SavedIndexes.load)
    resume = blocking(positions.SavedIndexes.resume)
    begin = blocking(positions.SavedIndexes.begin)
    save = blocking(positions.SavedIndexes.save)
    save_nowait = same(positions.SavedIndexes.save_nowait)
    check_nowait = same(positions.SavedIndexes.check_nowait)
    request = same(positions.SavedIndexes.request)
    answered = same(positions.SavedIndexes.answered)

    def __init__(self, client: Connected, client_id: str) -> None:
        """client: a StreamClient. client_id: the name under which the node saves the positions."""
        self._twin = positions.SavedIndexes(_connected(client), client_id)


class LeaseMember(Twin[leasing.LeaseMember]):
    client_id: str
    member_id: str
    members: int
    join = same(leasing.LeaseMember.join)
    grow = same(leasing.LeaseMember.grow)
    renew = same(leasing.LeaseMember.renew)
    check = same(leasing.LeaseMember.check)
    find_fence = same(leasing.LeaseMember.find_fence)
    give_back = same(leasing.LeaseMember.give_back)
    load = blocking(leasing.LeaseMember.load)
    resume = blocking(leasing.LeaseMember.resume)
    begin = blocking(leasing.LeaseMember.begin)
    save = blocking(leasing.LeaseMember.save)
    save_nowait = same(leasing.LeaseMember.save_nowait)
    leave = blocking(leasing.LeaseMember.leave)
    leave_nowait = same(leasing.LeaseMember.leave_nowait)

    @like(leasing.LeaseMember.__init__)
    def __init__(self, client: Connected, client_id: str, *, member_id: str | None = None) -> None:
        self._twin = leasing.LeaseMember(_connected(client), client_id, member_id=member_id)


class Messages(TwinIterator[consumers.Messages[T], T]):
    def __next__(self) -> T:
        # Most messages come from the current page. A coroutine for each would take a third as long as the message.
        reading = self._twin._current()
        return super().__next__() if reading is None else self._twin._show(reading)

    def close(self) -> None:
        """Does nothing, since there is nothing to close. `contextlib.closing` calls this method."""


class SharedMessages(Messages[tuple[int, RichMessage]]):
    """An iterator over the messages of the partitions leased to one member. It can be continued after LeaseLost."""


class Consumer(TwinContext[consumers.Consumer]):
    next_index: int | None
    holes: int
    processed: int
    save = blocking(consumers.Consumer.save)
    messages = shown(Messages[RichMessage]._of, same(consumers.Consumer.messages))

    @like(consumers.Consumer.__init__)
    def __init__(self, stream: Stream, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> None:
        self._twin = consumers.Consumer(stream._twin, _awaited(positions), **options)

    def __iter__(self) -> Messages[RichMessage]:
        return self.messages()


class PartitionedConsumer(TwinContext[consumers.PartitionedConsumer]):
    next_indexes: dict[int, int]
    holes: int
    processed: int
    save = blocking(consumers.PartitionedConsumer.save)
    messages = shown(Messages[tuple[int, RichMessage]]._of, same(consumers.PartitionedConsumer.messages))
    watch_partitions = same(consumers.PartitionedConsumer.watch_partitions)

    @like(consumers.PartitionedConsumer.__init__)
    def __init__(
        self, partitions: Sequence[Stream], positions: Positions | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        their = [each._twin for each in partitions]
        self._twin = consumers.PartitionedConsumer(their, _awaited(positions), **options)

    def __iter__(self) -> Messages[tuple[int, RichMessage]]:
        return self.messages()


class SharedConsumer(TwinContext[sharing.SharedConsumer]):
    fences: dict[int, int]
    holes: int
    processed: int
    save = blocking(sharing.SharedConsumer.save)
    messages = shown(SharedMessages._of, same(sharing.SharedConsumer.messages))
    follow_leases = blocking(sharing.SharedConsumer.follow_leases)
    is_held = same(sharing.SharedConsumer.is_held)

    @like(sharing.SharedConsumer.__init__)
    def __init__(
        self, partitions: Sequence[Stream], membership: LeaseMember | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        their = [each._twin for each in partitions]
        self._twin = sharing.SharedConsumer(their, _awaited(membership), **options)

    def __iter__(self) -> SharedMessages:
        return self.messages()


class Follower(TwinIterator[consumers.Follower, RichMessage]):
    next_index: int | None
    holes: int
    next_page = blocking(consumers.Follower.next_page)
    stop = same(consumers.Follower.stop)

    def __next__(self) -> RichMessage:
        follower = self._twin
        at, page = follower._at, follower._rest
        if not 0 < at < len(page):
            return super().__next__()
        # Most messages come from the current page. A coroutine for each would take longer than the message itself.
        follower._at = at + 1
        return page[at]


class Publisher(TwinContext[publish.Publisher]):
    failed: Sequence[Push]
    unconfirmed: int
    wait = blocking(publish.Publisher.wait)
    push_many = blocking(publish.Publisher.push_many)
    flush = blocking(publish.Publisher.flush)
    close = same(publish.Publisher.close)

    @like(publish.Publisher.push)
    def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> Push:
        return _pushed(self._twin, data, key, headers)


def _pushed(publisher: publish.Publisher, data: BytesLike, key: BytesLike | None, headers: HeadersLike) -> Push:
    # Most pushes need not wait. A coroutine for each would take a third as long as the push.
    push = publisher._push(data, key, headers)
    if push is None:
        push = run_now(publisher.push(data, key=key, headers=headers))
    # A blocking client sends only inside calls, so messages of earlier calls may still wait to be sent.
    publisher._session.shell.send_lagging()
    return push


class PartitionedPublisher(TwinContext[publish.PartitionedPublisher]):
    unconfirmed: int
    flush = blocking(publish.PartitionedPublisher.flush)

    @like(publish.PartitionedPublisher.push)
    def push(
        self,
        data: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = (),
        partition_key: BytesLike | None = None,
    ) -> Push:
        key, partition_key = to_key(key), to_key(partition_key, "a partition key")
        return _pushed(self._twin._chosen(key, partition_key), data, key, headers)


class Stream(Twin[streams.Stream]):
    name: str
    partition: int
    unconfirmed: int
    handle: PartitionHandle
    push = blocking(streams.Stream.push)
    pull = blocking(streams.Stream.pull)
    pull_page = blocking(streams.Stream.pull_page)
    follow = shown(Follower._of, same(streams.Stream.follow))
    publisher = shown(Publisher._of, same(streams.Stream.publisher))
    find_index = blocking(streams.Stream.find_index)
    to_arrow = blocking(streams.Stream.to_arrow)
    info = blocking(streams.Stream.info)
    truncate = blocking(streams.Stream.truncate)
    set_retention = blocking(streams.Stream.set_retention)
    delete = blocking(streams.Stream.delete)
    copy_in = blocking(streams.Stream.copy_in)

    def __init__(self, session: ClientSession, handle: PartitionHandle) -> None:
        self._twin = streams.Stream(session._twin, handle)

    @property
    def session(self) -> ClientSession:
        return ClientSession._one_of(self._twin.session)

    @like(streams.Stream.consumer)
    def consumer(self, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> Consumer:
        return Consumer._of(self._twin.consumer(_awaited(positions), **options))


class PartitionedStream(Twin[streams.PartitionedStream]):
    name: str
    count: int
    partition_for = shown(Stream._one_of, same(streams.PartitionedStream.partition_for))
    get_partition = shown(Stream._one_of, same(streams.PartitionedStream.get_partition))
    push = blocking(streams.PartitionedStream.push)
    publisher = shown(PartitionedPublisher._of, same(streams.PartitionedStream.publisher))
    to_arrow = blocking(streams.PartitionedStream.to_arrow)
    info = blocking(streams.PartitionedStream.info)
    delete = blocking(streams.PartitionedStream.delete)

    @like(streams.PartitionedStream.__init__)
    def __init__(self, partitions: Sequence[Stream], *, is_whole: bool = False) -> None:
        self._twin = streams.PartitionedStream([each._twin for each in partitions], is_whole=is_whole)

    @property
    def partitions(self) -> tuple[Stream, ...]:
        """These partitions, in order of their numbers."""
        return tuple(map(Stream._one_of, self._twin.partitions))

    @like(streams.PartitionedStream.consumer)
    def consumer(
        self,
        positions: Positions | str,
        *,
        partitions: Sequence[int] | None = None,
        **options: Unpack[ConsumerArguments],
    ) -> PartitionedConsumer:
        return PartitionedConsumer._of(self._twin.consumer(_awaited(positions), partitions=partitions, **options))

    @like(streams.PartitionedStream.shared_consumer)
    def shared_consumer(self, membership: LeaseMember | str, **options: Unpack[ConsumerArguments]) -> SharedConsumer:
        return SharedConsumer._of(self._twin.shared_consumer(_awaited(membership), **options))


class RoutedMessages:
    """An iterator over the routed messages of a stream. It skips all other messages, which `strays` counts."""

    def __init__(self, messages: Iterable[RichMessage]) -> None:
        self._messages = iter(messages)
        self.strays = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RoutedMessage:
        for message in self._messages:
            try:
                return decode_routed(message.data)
            except UnexpectedAnswer:
                self.strays += 1
        raise StopIteration


class Correspondent(Twin[correspondents.Correspondent]):
    strays: int
    send = blocking(correspondents.Correspondent.send)
    reply = blocking(correspondents.Correspondent.reply)
    request = blocking(correspondents.Correspondent.request)

    @property
    def inbox(self) -> Stream:
        return Stream._one_of(self._twin.inbox)

    def routed(self, messages: Iterable[RichMessage]) -> RoutedMessages:
        """Returns an iterator over the routed messages of `messages`, a Follower or a Consumer of the inbox."""
        return RoutedMessages(messages)


class StreamListing(TwinIterator[admin.StreamListing, StreamInfo]):
    pass


class PositionListing(TwinIterator[admin.PositionListing, SavedPosition]):
    pass


class StreamClient(Twin[clients.StreamClient]):
    address: str
    reached = blocking(clients.StreamClient.reached)
    create = shown(Stream._of, blocking(clients.StreamClient.create))
    create_partitioned = shown(PartitionedStream._of, blocking(clients.StreamClient.create_partitioned))
    find_stream = shown(
        lambda found: None if found is None else PartitionedStream._of(found),
        blocking(clients.StreamClient.find_stream),
    )
    get_stream = shown(PartitionedStream._of, blocking(clients.StreamClient.get_stream))
    list_streams = shown(StreamListing._of, same(clients.StreamClient.list_streams))
    find_owner = blocking(clients.StreamClient.find_owner)
    correspondent = shown(Correspondent._of, blocking(clients.StreamClient.correspondent))
    converse = shown(Conversation._of, same(clients.StreamClient.converse))
    statistics = same(clients.StreamClient.statistics)

    def __init__(self, session: ClientSession) -> None:
        self._twin = clients.StreamClient(session._twin)

    @property
    def session(self) -> ClientSession:
        return ClientSession._one_of(self._twin.session)


connect = opening(connecting.connect, StreamClient._of)


@like(admin.list_positions)
def list_positions(
    client: Connected,
    *,
    stream_name: str | None = None,
    client_id: str | None = None,
    page_positions: int = admin.LIST_PAGE,
) -> PositionListing:
    options: dict[str, Any] = {"stream_name": stream_name, "client_id": client_id, "page_positions": page_positions}
    return PositionListing._of(admin.list_positions(_connected(client), **options))


@like(admin.set_position)
def set_position(client: Connected, client_id: str, stream_name: str, partition: int, index: int | None) -> int | None:
    return run_now(admin.set_position(_connected(client), client_id, stream_name, partition, index))


def _connected(client: Connected) -> session.Connected:
    return SimpleNamespace(session=client.session._twin)


def _awaited(positions: Any) -> Any:
    """Returns the async form of the positions that a blocking program gives to a consumer. Raises InvalidArgument."""
    if isinstance(positions, str):
        return positions
    check_keeps_positions(positions)
    return positions._twin if type(positions) in (SavedIndexes, LeaseMember) else _AwaitedPositions(positions)


class _AwaitedPositions:
    """The positions of a blocking program, with methods that the async client can await. The methods `resume` and
    `begin` exist only if the program's object has them."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._positions, name)
        if name not in ("load", "save", "resume", "begin", "leave"):
            return method

        async def awaited(*arguments: Any, **named: Any) -> Any:
            return method(*arguments, **named)

        return awaited
