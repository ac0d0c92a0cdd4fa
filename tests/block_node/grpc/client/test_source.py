"""Goal: backfill takes blocks from block nodes over gRPC: from ours, from a server of the official library, and from
servers that lie, break off or are of an earlier version.

Method: whole nodes over real sockets; the official server runs in threads of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio

from block_node.backfill.settings import BackfillSettingsError, SourceSetting, parse_source
from block_node.blocks.generator import GeneratedBlock
from block_node.grpc.client.channel import GrpcChannel
from block_node.grpc.client.source import GrpcSource
from block_node.grpc.messages import NO_BLOCK, WireMessage, read_message, write_message
from block_node.persist.ranges import BlockRanges
from ockam.actors.node import Node
from ockam.identity.tls import Tls, new_client_context
from ockam.identity.tls_layer import TlsLayer
from stream_node.node.process import NodeProcess
from tests.block_node.grpc.calls.block_door import GrpcPublisher, block_door
from tests.block_node.grpc.http2.raw_client import raw_client
from tests.block_node.publish.samples import chain_of
from tests.stream_node.doors.grpc.test_grpc_door import grpc_node, tls_settings
from tests.support.served import Served, wait_until

SUCCESS, ERROR, NOT_AVAILABLE = 1, 3, 6


class Listener:
    """What a fetch brings, in order."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, list[bytes]]] = []
        self.size_bytes = 0
        self.reason: str | None = None
        self.lied = False

    def grew(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes

    def block(self, number: int, items: list[bytes]) -> None:
        self.blocks.append((number, items))

    def ended(self, reason: str, *, lied: bool) -> None:
        assert self.reason is None, "a fetch ends once"
        self.reason, self.lied = reason, lied


def parts_of(block: GeneratedBlock, *, ends: bool = True) -> list[WireMessage]:
    parts: list[WireMessage] = [{"block_items": {"block_items": list(block.items)}}]
    return [*parts, {"end_of_block": {"block_number": block.number}}] if ends else parts


class OfficialServer:
    """A block node on grpcio. parts: what a subscription brings. status: of the node. detail: None: it is older."""

    def __init__(self, parts: Iterable[WireMessage], detail: WireMessage | None = None) -> None:
        self.parts = parts
        self.left = 0
        self.detail = detail
        self.status: WireMessage = {"last_available_block": 4, "only_latest_state": True}
        self.asked: list[WireMessage] = []
        self.port = 0

    def subscribe(self, request: bytes, context: Any) -> Iterator[bytes]:
        self.asked.append(read_message("SubscribeStreamRequest", request))
        try:
            for part in self.parts:
                yield write_message("SubscribeStreamResponse", part)
        finally:
            self.left += 1


@asynccontextmanager
async def official(server: OfficialServer) -> AsyncIterator[GrpcSource]:
    grpc = pytest.importorskip("grpc", reason="grpcio comes with the extra spark-connect")
    running = grpc.server(ThreadPoolExecutor(4), compression=grpc.Compression.Gzip)
    status = {"serverStatus": grpc.unary_unary_rpc_method_handler(
        lambda request, context: write_message("ServerStatusResponse", server.status)
    )}  # fmt: skip
    if server.detail is not None:
        status["serverStatusDetail"] = grpc.unary_unary_rpc_method_handler(
            lambda request, context: write_message("ServerStatusDetailResponse", server.detail)
        )
    subscribe = {"subscribeBlockStream": grpc.unary_stream_rpc_method_handler(server.subscribe)}
    package = "org.hiero.block.api"
    handlers = (
        grpc.method_handlers_generic_handler(f"{package}.BlockNodeService", status),
        grpc.method_handlers_generic_handler(f"{package}.BlockStreamSubscribeService", subscribe),
    )
    running.add_generic_rpc_handlers(handlers)
    server.port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    try:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            channel = GrpcChannel(node, f"127.0.0.1:{server.port}")
            yield GrpcSource(node, channel, silence_s_max=5)
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(running.stop(None).wait)


async def status_of(source: GrpcSource) -> tuple[BlockRanges | None, str]:
    found: list[tuple[BlockRanges | None, str]] = []
    source.ask_status(lambda ranges, reason: found.append((ranges, reason)))
    assert not found, "the answer comes after the call"
    await wait_until(lambda: bool(found))
    return found[0]


async def fetched(source: GrpcSource, first: int, last: int) -> Listener:
    listener = Listener()
    source.fetch(first, last, listener)
    await wait_until(lambda: listener.reason is not None or (bool(listener.blocks) and listener.blocks[-1][0] == last))
    return listener


async def test_the_detail_of_an_official_server_names_the_blocks() -> None:
    ranges = [{"range_start": 2, "range_end": 5}, {"range_start": 8, "range_end": 9}]
    async with official(OfficialServer([], {"available_ranges": ranges})) as source:
        found, reason = await status_of(source)
        assert (list(found or []), reason) == ([(2, 5), (8, 9)], "")


async def test_a_source_that_goes_on_behind_the_last_block_is_left() -> None:
    block, [more, _] = chain_of(1)[0], parts_of(chain_of(2)[1])
    server = OfficialServer(chain(parts_of(block), repeat(more)))
    async with official(server) as source:
        listener = await fetched(source, 0, 0)
        assert listener.blocks == [(0, list(block.items))]
        size_bytes = listener.size_bytes
        await wait_until(lambda: server.left == 1)
        assert (listener.size_bytes, listener.reason) == (size_bytes, None)


async def test_a_source_that_never_says_the_end_is_left_when_it_was_silent_for_long() -> None:
    block, never = chain_of(1)[0], Event()

    def parts() -> Iterator[WireMessage]:
        yield from parts_of(block)
        never.wait(30)

    server = OfficialServer(parts())
    async with official(server) as source:
        fetch = source.fetch(0, 0, listener := Listener())
        await wait_until(lambda: bool(listener.blocks))
        fetch._silence_s_max = 0.1
        await wait_until(lambda: fetch._call is None)
        assert listener.reason is None
        never.set()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"first_available_block": 1, "last_available_block": 4}, [(1, 4)]),
        ({"first_available_block": NO_BLOCK, "last_available_block": NO_BLOCK}, []),
        ({"last_available_block": NO_BLOCK}, []),
        ({"last_available_block": 2**63}, []),
    ],
)
async def test_a_server_without_detail_is_asked_for_its_status(status: WireMessage, expected: list[Any]) -> None:
    server = OfficialServer([])
    server.status = status
    async with official(server) as source:
        for _ in range(2):
            found, _reason = await status_of(source)
            assert list(found or []) == expected


async def test_a_source_of_an_earlier_version_is_asked_for_its_detail_again() -> None:
    """Claim: a source that was brought up to date says all its gaps, without a restart of this node. Method: a server
    without detail, whose address then leads to one with it."""
    ranges = [{"range_start": 2, "range_end": 5}, {"range_start": 8, "range_end": 9}]
    async with (
        official(OfficialServer([])) as source,
        official(OfficialServer([], {"available_ranges": ranges})) as new,
    ):
        assert list((await status_of(source))[0] or []) == [(0, 4)]
        source._status_channel = new._status_channel
        assert list((await status_of(source))[0] or []) == [(2, 5), (8, 9)]


async def test_numbers_that_cannot_be_are_refused() -> None:
    ranges = [{"range_start": 5, "range_end": 2**63 + 1}]
    async with official(OfficialServer([], {"available_ranges": ranges})) as source:
        found, reason = await status_of(source)
        assert found is None
        assert "9223372036854775809" in reason


async def test_blocks_come_from_an_official_server_compressed() -> None:
    blocks = chain_of(4)[1:]
    server = OfficialServer([part for block in blocks for part in parts_of(block)] + [{"status": SUCCESS}])
    async with official(server) as source:
        listener = await fetched(source, 1, 3)
        assert listener.blocks == [(block.number, list(block.items)) for block in blocks]
        assert listener.size_bytes > sum(len(item) for block in blocks for item in block.items)
        assert server.asked == [{"start_block_number": 1, "end_block_number": 3}]
        # The end of the call after the last block is no failure.
        await trio.sleep(0.05)
        assert listener.reason is None


@pytest.mark.parametrize(
    ("parts", "lied", "reason"),
    [
        ([{"status": SUCCESS}], True, "SUCCESS before block 1"),
        ([{"status": NOT_AVAILABLE}], True, "NOT_AVAILABLE before block 1"),
        ([{"status": ERROR}], False, "ERROR before block 1"),
        ([*parts_of(chain_of(2)[1]), {"status": SUCCESS}], True, "SUCCESS before block 2"),
        (parts_of(chain_of(3)[2]), True, "block 2 ended, and block 1 had not come"),
        (parts_of(chain_of(2)[1], ends=False), True, "ended too early"),
        ([], True, "ended too early"),
    ],
)
async def test_a_source_that_lies_or_lacks_is_told_apart(parts: list[WireMessage], lied: bool, reason: str) -> None:
    async with official(OfficialServer(parts)) as source:
        listener = await fetched(source, 1, 3)
        assert reason in (listener.reason or "")
        assert listener.lied is lied


async def test_nobody_there_is_unreachable() -> None:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        source = GrpcSource(node, GrpcChannel(node, "127.0.0.1:1"), silence_s_max=5)
        found, reason = await status_of(source)
        assert found is None
        assert reason.startswith("unreachable")
        listener = await fetched(source, 0, 1)
        assert (listener.reason or "").startswith("unreachable")
        assert not listener.lied
        nursery.cancel_scope.cancel()


async def test_a_real_node_may_serve_its_status_at_another_port(tmp_path: Path) -> None:
    async with (
        block_door(tmp_path / "blocks") as blocks,
        block_door(tmp_path / "status") as status,
        trio.open_nursery() as nursery,
    ):
        await publish(blocks.port, 3)
        await publish(status.port, 1)
        node = Node(nursery)
        channel, other = (GrpcChannel(node, f"127.0.0.1:{door.port}") for door in (blocks, status))
        source = GrpcSource(node, channel, other, silence_s_max=5.0)
        assert (await status_of(source))[0] == BlockRanges([(0, 0)])
        assert len((await fetched(source, 0, 2)).blocks) == 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("grpc://node.example.org:40840", ("grpc", "node.example.org:40840", 0)),
        ("grpcs://node.example.org:40840@2", ("grpcs", "node.example.org:40840", 2)),
        ("127.0.0.1:4000", ("", "127.0.0.1:4000", 0)),
    ],
)
def test_a_source_says_how_it_is_spoken_to(text: str, setting: tuple[str, str, int]) -> None:
    scheme, hop, priority = setting
    name = text.partition("@")[0]
    assert parse_source(text) == SourceSetting(name, (hop,), priority, scheme)


def test_a_source_over_grpc_has_one_hop() -> None:
    with pytest.raises(BackfillSettingsError, match="over another node"):
        parse_source("grpc://a:1>b:2")


async def publish(port: int, count: int, first: int = 0) -> None:
    async with raw_client(port) as client:
        publisher = await GrpcPublisher.opened(client)
        for block in chain_of(count)[first:]:
            await publisher.block(block, set_size=100)
        await publisher.wait_for("acknowledgement", count - 1)


def has_blocks(running: Served, count: int) -> Callable[[], bool]:
    def check() -> bool:
        blocks = running.statistics().services.blocks
        return blocks is not None and blocks.node.publish is not None and blocks.node.store.blocks == count

    return check


async def test_one_of_our_nodes_fills_up_from_another(tmp_path: Path) -> None:
    async with grpc_node(tmp_path / "a", grpc_compression=True) as (_, port):
        await publish(port, 120)
        source = f"grpc://127.0.0.1:{port}"
        async with grpc_node(tmp_path / "b", backfill_block_node_sources=(source,)) as (filling, _):
            await wait_until(has_blocks(filling, 120))
            blocks = filling.statistics().services.blocks
            assert blocks is not None
            assert [each.name for each in blocks.backfill.sources] == [source]
            assert blocks.backfill.counters.fetch_errors == 0


async def test_a_node_takes_from_its_source_while_a_publisher_goes_on(tmp_path: Path) -> None:
    """specs/block_publish.md: the node records the offered block, and continues trying to catch up."""
    async with grpc_node(tmp_path / "a") as (_, port):
        await publish(port, 60)
        settings = {"backfill_block_node_sources": (f"grpc://127.0.0.1:{port}",), "backfill_scan_interval_secs": 3_600}
        async with grpc_node(tmp_path / "b", **settings) as (filling, own_port), raw_client(own_port) as client:
            publisher = await GrpcPublisher.opened(client)
            await publisher.block(chain_of(65)[64], set_size=100)
            # Blocks 0 to 59 are at the source, or here already; nobody has 60 to 63 but this publisher.
            # Acknowledgements of fetched blocks may come before.
            while "node_behind_publisher" not in await publisher.next():
                pass
            await wait_until(has_blocks(filling, 60))
            for number in range(60, 65):
                await publisher.block(chain_of(65)[number], set_size=100)
            await publisher.wait_for("acknowledgement", 64)
            assert has_blocks(filling, 65)()


async def test_a_source_behind_tls(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    authority, tls = tls_settings(tmp_path / "keys")
    async with grpc_node(tmp_path / "a", **tls) as (_, port):

        def make_tls() -> TlsLayer:
            context = new_client_context(Tls(ca=authority.ca))
            context.set_alpn_protocols(["h2"])
            return TlsLayer(context, server_side=False, server_name="localhost")

        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            for make, is_there in ((make_tls, True), (None, False)):
                source = GrpcSource(node, GrpcChannel(node, f"127.0.0.1:{port}", make), silence_s_max=1)
                found, reason = await status_of(source)
                assert (found is not None) is is_there, reason
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_two_nodes_fill_up_from_each_other_over_a_kill_of_the_source(tmp_path: Path) -> None:
    """Goal: a node asks its killed source again without a start of its own, and the source gets from it what a live
    publisher brought meanwhile. Method: the source is killed while blocks are missing, and begins again at its port."""
    chain_ = chain_of(420)
    flags = ("--grpc", "127.0.0.1:0")
    environment = {"STREAM_NODE_BLOCK_ACCEPT_UNCHECKED_PROOFS": "true"}
    settings: dict[str, Any] = {
        "backfill_fetch_batch_size": 1,
        "backfill_concurrent_fetches": 1,
        "backfill_initial_retry_delay_secs": 0.2,
        "backfill_max_backoff_secs": 0.5,
        "backfill_scan_interval_secs": 1,
    }
    with NodeProcess(tmp_path / "a", arguments=flags, environment=environment) as first:
        address = first.grpc[0]
        await publish(int(address.rpartition(":")[2]), 400)
        settings["backfill_block_node_sources"] = (f"grpc://{address}",)
        async with grpc_node(tmp_path / "b", **settings) as (filling, port):
            await wait_until(lambda: not has_blocks(filling, 0)())
            first.kill()
            statistics = filling.statistics().services.blocks
            assert statistics is not None
            assert 0 < statistics.node.store.blocks < 400, "the source was killed in the middle"
            environment |= {
                "STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": f"grpc://127.0.0.1:{port}",
                "STREAM_NODE_BACKFILL_SCAN_INTERVAL_SECS": "1",
            }
            with NodeProcess(tmp_path / "a", arguments=("--grpc", address), environment=environment):
                await wait_until(has_blocks(filling, 400))
                await publish(port, 420, first=400)
                async with trio.open_nursery() as nursery:
                    node = Node(nursery)
                    source = GrpcSource(node, GrpcChannel(node, address), silence_s_max=5)
                    with trio.fail_after(60):
                        while list((await status_of(source))[0] or ()) != [(0, 419)]:
                            await trio.sleep(0.1)
                    found = await fetched(source, 0, 419)
                    assert found.blocks == [(block.number, list(block.items)) for block in chain_]
                    nursery.cancel_scope.cancel()
