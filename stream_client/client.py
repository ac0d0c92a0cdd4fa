"""The client of a node, over whatever shell drives it: makes and finds streams, and asks services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from ockam.forwarding import OWN_PREFIX
from ockam.protocol import Protocol
from stream_client.arguments import encoded
from stream_client.consume.iteration import Listing
from stream_client.core.payloads import answer_of
from stream_client.core.requests import Call
from stream_client.core.service_route import INDEX_SERVICE, STREAM_SERVICE
from stream_client.core.statistics import CoreStatistics
from stream_client.correspondent import Correspondent
from stream_client.errors import ClientError, NodeFailed, RequestRefused, StreamNotFound, UnexpectedAnswer
from stream_client.shell.session import Session
from stream_client.streams import PartitionedStream, Stream
from stream_service.extensions import LIST, ListRequest, ListResponse, StreamInfo, StreamKey
from stream_service.names import near_names

Q = TypeVar("Q")
A = TypeVar("A")

LIST_PAGE = 1_000


class StreamClient:
    """One node's streams. Made by `connect`; its methods may be used from many tasks at once."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __repr__(self) -> str:
        link = self.session.core.connection
        state = "closed" if link.closed else "not connected" if link.wire is None else "connected"
        return f"<StreamClient of {self.address}, {state}>"

    @property
    def address(self) -> str:
        """`host:port` of the node connected to."""
        return self.session.address

    def statistics(self) -> CoreStatistics:
        return self.session.core.statistics()

    async def reached(self) -> None:
        """Wait for a sign of life of the stream service. Raises NodeUnreachable, NotAStreamNode, RequestTimeout."""
        way = self.session.core.service_route
        if not way.reached:
            with suppress(RequestRefused, NodeFailed):  # Whoever refuses is there.
                await self.session.finished(way.ask(), self.session.answer_timeout_s)

    async def create(self, name: str | None = None) -> Stream:
        """The stream of that name, made if it does not exist; without a name the node makes one up."""
        return (await self._create(name, 1))[0]

    async def create_partitioned(self, name: str | None, partitions: int) -> PartitionedStream:
        """All partitions of a stream; those missing of the first `partitions` are made, which moves keys to others.

        A stream that has more keeps them, and its keys stay where they are. A node without `node/stream_list/1` does
        not tell of those; then they are the first `partitions`.
        """
        made = await self._create(name, partitions)
        try:
            there = await self.find_stream(made[0].name)
        except RequestRefused:
            there = None
        return there if there is not None and there.count > partitions else PartitionedStream(made)

    async def find_stream(self, name: str) -> PartitionedStream | None:
        """All partitions of a stream, if it exists; nothing is made. Needs a node that has `node/stream_list/1`."""
        partitions = []
        async for info in self.list_streams(name):
            if info.stream_name != name:
                break
            partitions.append(info.partition)
        handles = self.session.core.find_handles(name, partitions)
        return PartitionedStream([Stream(self.session, handle) for handle in handles]) if handles else None

    async def get_stream(self, name: str) -> PartitionedStream:
        """As `find_stream`. Raises StreamNotFound."""
        found = await self.find_stream(name)
        if found is None:
            near = near_names(name, await self._some_names(name[:1]))
            raise StreamNotFound(f"{self.address} has no stream {name!r}{f'; it has {near}' if near else ''}")
        return found

    async def _some_names(self, prefix: str) -> set[str]:
        """The first names with that prefix, and the first ones of all: a page each, for a hint. None where not told."""
        names: set[str] = set()
        with suppress(ClientError):
            for begins in {prefix, ""}:
                page = await self.ask(STREAM_SERVICE, LIST, ListRequest(0, begins, None, LIST_PAGE))
                names.update(each.stream_name for each in page.streams)
        return names

    async def correspondent(self, inbox: str | None = None) -> Correspondent:
        """A party of two-way messaging, whose answers come to that stream; a generated one where none is named."""
        return Correspondent(self, await self.create(inbox))

    def list_streams(self, prefix: str = "", *, page_streams: int = LIST_PAGE) -> Listing[StreamInfo]:
        """The stream-partitions whose name begins so, by name and partition, taken in pages."""
        request: ListRequest | None = ListRequest(0, prefix, None, page_streams)

        async def next_page() -> Sequence[StreamInfo]:
            nonlocal request
            if request is None:
                return ()
            page = await self.ask(STREAM_SERVICE, LIST, request)
            request = _behind(request, page)
            return page.streams

        return Listing(next_page)

    async def request(self, service: str, payload: bytes) -> bytes:
        """Ask a service of the node; its one answer. Raises RequestRefused, RequestTimeout."""
        core = self.session.core
        return (await self.session.answered(core.call(core.route_to(service), payload))).answers[0]

    async def ask(self, service: str, protocol: Protocol[Q, A], request: Q) -> A:
        """Ask a service of the node in that protocol. Raises RequestRefused, RequestTimeout, UnexpectedAnswer."""
        return (await self.ask_all(service, protocol, (request,)))[0]

    async def ask_all(self, service: str, protocol: Protocol[Q, A], requests: Sequence[Q]) -> list[A]:
        """The answers to many requests, all on their way at once. Raises the first error."""
        return await self.session.answers_of([self._call(service, protocol, each) for each in requests], protocol)

    def ask_nowait(
        self, service: str, protocol: Protocol[Q, A], request: Q, on_answer: Callable[[A | ClientError], None]
    ) -> Callable[[], None]:
        """Ask without waiting: called back with the answer or error, maybe at once. What is returned prevents it."""
        core = self.session.core
        try:
            call = self._call(service, protocol, request)
        except ClientError as error:
            on_answer(error)
            return lambda: None

        def answered() -> None:
            try:
                answer: A | ClientError = call.error or answer_of(call, protocol)
            except UnexpectedAnswer as error:
                answer = error
            on_answer(answer)

        def cancel() -> None:
            call.forget(answered)
            core.forget(call)

        call.when_done(answered)
        return cancel

    def tell(self, service: str, payload: bytes) -> None:
        """Send a service something that it does not answer; lost when the connection is."""
        self.session.core.tell(service, payload)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after that delay; what is returned prevents it."""
        return self.session.shell.call_later(delay_s, callback)

    def now_s(self) -> float:
        """The shell's clock (`Shell.now_s`)."""
        return self.session.shell.now_s()

    def _call(self, service: str, protocol: Protocol[Q, A], request: Q) -> Call:
        """Send a request to a service. An index service without our own protocols would leave it without an answer."""
        core = self.session.core
        call = core.call(core.route_to(service), encoded(protocol, request))
        if service == INDEX_SERVICE and protocol.name.startswith(OWN_PREFIX.decode()):
            core.service_route.need_extensions(call, protocol.name)
        return call

    async def _create(self, name: str | None, partitions: int) -> list[Stream]:
        core = self.session.core
        call = core.create(name, partitions)
        await self.session.answered(call)
        return [Stream(self.session, handle) for handle in core.handles(call)]


def _behind(request: ListRequest, page: ListResponse) -> ListRequest | None:
    """The request for the streams behind this page; None at the end."""
    if not page.more or not page.streams:
        return None
    after = StreamKey(page.streams[-1].stream_name, page.streams[-1].partition)
    return ListRequest(0, request.prefix, after, request.limit)
