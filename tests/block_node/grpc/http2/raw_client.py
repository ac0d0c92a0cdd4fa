"""A client on bare h2 that speaks as PBJ's does, and as no library would: for frames that grpcio never sends.

PBJ is the client of consensus nodes and of the backfill of block nodes. What it sends is read from its source (pbj
04e9a48b, module pbj-grpc-client-helidon, if no other is named; CN: hiero-consensus-node, package
com.hedera.node.app.blocks.impl.streaming; BN: hiero-block-node b81bbd119):

- each header: the constructor of `PbjGrpcCall`, which sends the headers of `pbj_headers` and the metadata of its
  caller, and nothing else: no `te`, no `user-agent`, no `grpc-timeout`.
- one message is one write, with the flag 1 for every message if the encoding is not identity, whatever the server
  accepts: `PbjGrpcCall.sendRequest`; `PbjGrpcCall.receiveRepliesLoop` leaves what the server accepts for later.
- zstd frames without the size of their content, in a block that is flushed and an empty last one:
  `ZstdGrpcTransformer.compress` (module pbj-grpc-common).
- a PING at each time-out of a read: `PbjGrpcCall.receiveRepliesLoop`.
- the preface at once, without an upgrade, and settings: `PbjGrpcClient.createHttp2ClientConnection`, and
  `priorKnowledge` in `PbjGrpcClient.createPbjGrpcClientStream`.
- the header of a block again on the same stream, after a time-out: CN PR 26767.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import h2.events
import trio
import zstandard
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine

from block_node.grpc.http2.message_reader import prefix_of_message

Headers = list[tuple[str, str]]
PATIENCE_S = 20.0
KEPT_BYTES = 1 << 26
"""Of each answer. What comes beyond is only counted."""


def pbj_headers(path: str, encoding: str = "identity", authority: str = "") -> Headers:
    return [
        # The host and port of the base URI (constructor of `PbjGrpcClient`). Earlier versions sent the authority of
        # their configuration, which is empty in a consensus node (CN `BlockNodeClientFactory.buildPbjClient`).
        (":authority", authority),
        (":method", "POST"),
        (":path", path),
        # Also over TLS.
        (":scheme", "http"),
        # CN `BlockNodeClientFactory.buildPbjClient`, BN `BlockNodeClient` (org.hiero.block.node.base.client).
        ("content-type", "application/grpc"),
        # `GrpcCompression.getDecompressorNames` (module pbj-runtime), joined by commas; `PbjGrpcClient` adds zstd.
        ("grpc-accept-encoding", "identity,gzip,zstd"),
        # One for all messages of a client: zstd from a consensus node since CN PR 26937, identity from a block node.
        ("grpc-encoding", encoding),
    ]


def zstd_stream(data: bytes) -> bytes:
    """A zstd frame as a stream writes it: without the size of its content."""
    packer = zstandard.ZstdCompressor(level=3).compressobj()
    return packer.compress(data) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + packer.flush()


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    return prefix_of_message(len(message), compressed=compressed) + message


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


class Answer:
    """What came for one stream."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.data = bytearray()
        self.received_bytes = 0
        self.has_ended = False
        self.reset: int | None = None

    def messages(self) -> list[bytes]:
        """The complete messages that have come, decompressed."""
        found, at = [], 0
        while len(self.data) >= at + 5 and len(self.data) >= (
            end := at + 5 + int.from_bytes(self.data[at + 1 : at + 5])
        ):
            message = bytes(self.data[at + 5 : end])
            if self.data[at]:
                message = zstandard.decompress(message)
            found.append(message)
            at = end
        return found

    @property
    def status(self) -> int:
        found = self.trailers.get("grpc-status", self.headers.get("grpc-status"))
        assert found is not None, f"{self.headers} {self.trailers}"
        return int(found)

    @property
    def text(self) -> str:
        return self.trailers.get("grpc-message", self.headers.get("grpc-message", ""))


class GoawayStates(H2ConnectionStateMachine):
    """h2 as a client ends the connection at a GOAWAY, too. Real clients finish their calls."""

    def process_input(self, input_: ConnectionInputs) -> list[h2.events.Event]:
        return [] if input_ is ConnectionInputs.RECV_GOAWAY else super().process_input(input_)


class RawClient:
    """One connection. reads: whether received bytes are given back to their windows."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h2 = H2Connection(
            H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.h2.state_machine = GoawayStates()
        self.answers: dict[int, Answer] = {}
        self.goaways: list[h2.events.ConnectionTerminated] = []
        self.pings = 0
        self.keeps = True
        self.has_ended = False
        self._sending = trio.Lock()

    async def put(self, data: bytes) -> None:
        """Sends bytes as they are."""
        async with self._sending:
            await self.stream.send_all(data)

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.put(data)

    async def open(self, headers: Headers) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.answers[stream_id] = Answer()
        self.h2.send_headers(stream_id, headers)
        await self.flush()
        return stream_id

    async def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Sends bytes as the window lets it. A call that has ended gets no more window, so it fails then."""
        at = 0
        while at < len(data):
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if not room:
                answer = self.answers[stream_id]
                assert not answer.has_ended, f"the call has ended: {answer.headers} {answer.trailers}"
                assert not self.has_ended, "the connection has ended"
                await self.receive()
                continue
            self.h2.send_data(stream_id, data[at : at + room])
            at += room
            await self.flush()
        if end:
            self.h2.end_stream(stream_id)
            await self.flush()

    async def receive(self) -> None:
        data = await self.stream.receive_some(65_536)
        if not data:
            self.has_ended = True
            return
        for event in self.h2.receive_data(bytes(data)):
            if isinstance(event, h2.events.ConnectionTerminated):
                self.goaways.append(event)
                continue
            if isinstance(event, h2.events.PingReceived):
                self.pings += 1
            answer = self.answers.get(getattr(event, "stream_id", 0) or 0)
            if answer is None:
                continue
            if isinstance(event, h2.events.ResponseReceived):
                answer.headers = _texts(event.headers)
            elif isinstance(event, h2.events.TrailersReceived):
                answer.trailers = _texts(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                answer.received_bytes += len(event.data)
                if len(answer.data) < KEPT_BYTES:
                    answer.data += event.data
                if self.keeps:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                answer.has_ended = True
            elif isinstance(event, h2.events.StreamReset):
                answer.reset = int(event.error_code or 0)
        await self.flush()

    async def until(self, is_true: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not is_true() and not self.has_ended:
                await self.receive()
        assert is_true(), "the connection has ended before"

    async def until_end(self, stream_id: int) -> Answer:
        answer = self.answers[stream_id]
        await self.until(lambda: answer.has_ended or answer.reset is not None)
        return answer

    async def until_closed(self) -> None:
        """Reads until the other side has closed the connection."""
        with trio.fail_after(PATIENCE_S):
            while not self.has_ended:
                try:
                    await self.receive()
                except trio.BrokenResourceError:
                    return

    async def ask(self, headers: Headers, body: bytes) -> Answer:
        """One call with its whole body."""
        stream_id = await self.open(headers)
        await self.send(stream_id, body, end=True)
        return await self.until_end(stream_id)


@asynccontextmanager
async def raw_client(port: int, own_host: str | None = None) -> AsyncIterator[RawClient]:
    """own_host: the address of this machine from which the client connects."""
    async with await trio.open_tcp_stream("127.0.0.1", port, local_address=own_host) as stream:
        client = RawClient(stream)
        client.h2.initiate_connection()
        await client.flush()
        yield client
