"""The client for programs without an event loop: scripts, Spark executors. It needs neither trio nor AnyIO.

with blocking.connect("127.0.0.1:4000") as client:
    stream = client.create("orders")
    index = stream.push(b"hello")
    for message in stream.pull(0, 10):
        print(message.index, message.data)

Names and meanings are those of the async client (`stream_client`), without `await`. It does its I/O inside
calls and has no threads: what a publisher has been given goes out with the pushes behind it, at the latest when it is
flushed or its block ends, and leases are renewed while an iterator or another call is running. It is for one thread
at a time.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ockam.address import Route
from ockam.protocol import Protocol
from stream_client import client as async_form
from stream_client.arguments import to_address
from stream_client.blocking.correspondent import Correspondent
from stream_client.blocking.streams import PartitionedStream, Stream
from stream_client.core.client_core import ClientCore
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.core.statistics import CoreStatistics
from stream_client.shell.backoff import Reconnect
from stream_client.shell.blocking_shell import BlockingShell
from stream_client.shell.driving import Driven, drive
from stream_client.shell.session import ANSWER_TIMEOUT_S, Framing, OnLink, Session
from stream_client.stopping import stop_on_signals_blocking
from stream_service.extensions import StreamInfo

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

stop_on_signals = stop_on_signals_blocking
"""Leave a block when the program is told to stop; `stopping.stop_on_signals` is the async form."""


@contextmanager
def connect(
    address: str = "127.0.0.1:4000",
    *,
    via: Route = (),
    service: str = STREAM_SERVICE,
    index_service: str | None = None,
    framing: Framing = "head",
    reconnect: Reconnect | None = Reconnect(),  # noqa: B008  (frozen, no state)
    answer_timeout_s: float | None = ANSWER_TIMEOUT_S,
    contact_timeout_s: float | None = None,
    on_link: OnLink | None = None,
) -> Iterator[StreamClient]:
    """A client of the node at `host:port`; the rest as `stream_client.connect`.
    Raises InvalidArgument, NodeUnreachable.
    """
    address = to_address(address)
    asks_route = contact_timeout_s is not None or on_link is not None
    core = ClientCore(via=via, service=service, index_service=index_service, asks_route=asks_route)
    if on_link is not None:
        core.service_route.on_link = on_link
    shell = BlockingShell(address, core, framing, reconnect, contact_timeout_s)
    shell.open()
    try:
        yield StreamClient(async_form.StreamClient(Session(address, shell.core, shell, answer_timeout_s)))
    finally:
        shell.close()


class StreamClient:
    """One node's streams. Made by `connect`. inner: the same client in its async form, for `run`."""

    def __init__(self, inner: async_form.StreamClient) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def address(self) -> str:
        """`host:port` of the node connected to."""
        return self.inner.address

    def statistics(self) -> CoreStatistics:
        return self.inner.statistics()

    def reached(self) -> None:
        """Wait for a sign of life of the stream service. Raises NodeUnreachable, NotAStreamNode, RequestTimeout."""
        drive(self.inner.reached())

    def create(self, name: str | None = None) -> Stream:
        """The stream of that name, made if it does not exist; without a name the node makes one up."""
        return Stream(drive(self.inner.create(name)))

    def create_partitioned(self, name: str | None, partitions: int) -> PartitionedStream:
        """All partitions of a stream; those missing of the first `partitions` are made, which moves keys to others.

        A stream that has more keeps them, and its keys stay where they are. A node without `node/stream_list/1` does
        not tell of those; then they are the first `partitions`.
        """
        return PartitionedStream(drive(self.inner.create_partitioned(name, partitions)))

    def find_stream(self, name: str) -> PartitionedStream | None:
        """All partitions of a stream, if it exists; nothing is made. Needs a node that has `node/stream_list/1`."""
        found = drive(self.inner.find_stream(name))
        return None if found is None else PartitionedStream(found)

    def get_stream(self, name: str) -> PartitionedStream:
        """As `find_stream`. Raises StreamNotFound."""
        return PartitionedStream(drive(self.inner.get_stream(name)))

    def correspondent(self, inbox: str | None = None) -> Correspondent:
        """A party of two-way messaging, whose answers come to that stream; a generated one where none is named."""
        return Correspondent(drive(self.inner.correspondent(inbox)))

    def list_streams(self, prefix: str = "", *, page_streams: int = async_form.LIST_PAGE) -> Iterator[StreamInfo]:
        """The stream-partitions whose name begins so, by name and partition, taken in pages."""
        return Driven(self.inner.list_streams(prefix, page_streams=page_streams))

    def request(self, service: str, payload: bytes) -> bytes:
        """Ask a service of the node; its one answer. Raises RequestRefused, RequestTimeout."""
        return drive(self.inner.request(service, payload))

    def ask(self, service: str, protocol: Protocol[Q, A], request: Q) -> A:
        """Ask a service of the node in that protocol. Raises RequestRefused, RequestTimeout, UnexpectedAnswer."""
        return drive(self.inner.ask(service, protocol, request))

    def ask_all(self, service: str, protocol: Protocol[Q, A], requests: Sequence[Q]) -> list[A]:
        """The answers to many requests, all on their way at once. Raises the first error."""
        return drive(self.inner.ask_all(service, protocol, requests))

    def tell(self, service: str, payload: bytes) -> None:
        """Send a service something that it does not answer; lost when the connection is."""
        self.inner.tell(service, payload)
        drive(self.inner.session.shell.give_way())

    def now_s(self) -> float:
        """The shell's clock (`Shell.now_s`)."""
        return self.inner.now_s()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that is made of `inner`'s calls, and of nothing that needs an event loop."""
        return drive(coroutine)
