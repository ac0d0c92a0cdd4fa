"""Goal: the metrics and the dashboard tell what peers do at the gRPC door, by the names of the reference block node.

Method: a whole node; publishers speak as PBJ does, from two hosts; the parser of prometheus-client reads the metrics.
"""

from __future__ import annotations

import math
from pathlib import Path

import trio

from block_node.grpc.messages import write_message
from ockam.actors.address import split_host_port
from tests.block_node.grpc.calls.block_door import DETAIL, GET, PUBLISH, STATUS, SUBSCRIBE, GrpcPublisher
from tests.block_node.grpc.http2.raw_client import RawClient, framed, pbj_headers, raw_client
from tests.block_node.publish.samples import chain_of
from tests.metrics.test_metrics import Samples, scrape
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.grpc.test_grpc_door import BLOCKS, grpc_of, is_ready
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.support.served import wait_until

WINDOWS = "stream_node_grpc_publisher_window_closed_seconds_max"
CALM, EAGER = "anonymous:127.0.0.2", "anonymous:127.0.0.3"
ALWAYS = {"app_state_status": 1, "publisher_stall_timeouts_sent_total": 0, "subscriber_errors_total": 0}


def own(samples: Samples) -> dict[str, float]:
    """The samples with the names of the reference block node, without `blocknode_`."""
    return {name.removeprefix("blocknode_"): value for (name, _), value in samples.items() if name.startswith("blockn")}


async def opened(client: RawClient) -> GrpcPublisher:
    return GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))


async def ask_and_follow(reader: RawClient) -> None:
    """A request for each kind of status, one block that is here, one that is not, and a subscription that goes on."""
    for path, request in (
        (STATUS, b""),
        (DETAIL, b""),
        (GET, write_message("BlockRequest", {"block_number": 3})),
        (GET, write_message("BlockRequest", {"block_number": 30})),
    ):
        await reader.ask(pbj_headers(path), framed(request))
    follow = await reader.open(pbj_headers(SUBSCRIBE))
    asked = {"start_block_number": 5, "end_block_number": 30}
    await reader.send(follow, framed(write_message("SubscribeStreamRequest", asked)), end=True)
    await reader.until(lambda: bool(reader.answers[follow].messages()))


async def test_what_peers_do_is_counted_by_the_names_of_the_reference_block_node(tmp_path: Path) -> None:
    chain = chain_of(8)
    async with http_node(tmp_path, **BLOCKS) as node:
        await wait_until(lambda: is_ready(node.running))
        port = split_host_port(node.running.server.grpc[0])[1]
        async with raw_client(port) as client, raw_client(port) as reader:
            publisher = await opened(client)
            for block in chain:
                await publisher.block(block)
            before = await publisher.wait_for("acknowledgement", 7)
            acknowledgements = 1 + len(before)
            # One block below the last one, one too high, and a set of the refused one.
            await publisher.items(chain[6].items[:1])
            await publisher.wait_for("skip_block", 6)
            await publisher.header(20)
            await publisher.wait_for("node_behind_publisher", 7)
            await publisher.items(chain[0].items[1:3])
            await publisher.header(8)
            await ask_and_follow(reader)
            found = own(await scrape(node))
            # An old block ends the stream; another stream is ended by its publisher.
            await publisher.items(chain[0].items[:1])
            await client.until_end(publisher.stream_id)
            other = await opened(client)
            await other.end_stream()
            await client.until_end(other.stream_id)
            after = own(await scrape(node))
    items = sum(len(block.items) for block in chain)
    latency_ns = found.pop("publisher_receive_latency_ns_total")
    assert 0 < latency_ns < 60e9
    assert found == {
        **ALWAYS,
        "app_historical_oldest_block": 0,
        "app_historical_newest_block": 7,
        "publisher_latest_block_number_acknowledged": 7,
        "publisher_open_connections": 1,
        "publisher_lowest_block_number_inbound": 8,
        "publisher_highest_block_number_inbound": 8,
        "subscriber_open_connections": 1,
        "publisher_block_items_received_total": items + 3,
        "publisher_blocks_closed_complete_total": 8,
        "publisher_stream_sets_dropped_total": 1,
        "publisher_block_endstream_received_total": 0,
        "publisher_blocks_ack_sent_total": acknowledgements,
        "publisher_blocks_skips_sent_total": 1,
        "publisher_blocks_resend_sent_total": 0,
        "publisher_block_node_behind_sent_total": 1,
        "publisher_block_endofstream_sent_total": 0,
        "publisher_stream_errors_total": 0,
        "get_block_requests_total": 2,
        "get_block_requests_success_total": 1,
        "get_block_requests_not_available_total": 1,
        "get_block_requests_not_found_total": 0,
        "server_status_requests_total": 1,
        "server_status_details_requests_total": 1,
    }
    changed = {name for name in after if after[name] != found.get(name, latency_ns)}
    assert {name: after[name] for name in changed if after.get(name)} == {
        "publisher_block_items_received_total": items + 4,
        "publisher_block_endofstream_sent_total": 1,
        "publisher_stream_errors_total": 1,
        "publisher_block_endstream_received_total": 1,
    }


async def test_the_reference_dashboards_find_their_names(tmp_path: Path) -> None:
    """The queries of the panels about publishers, subscribers, blocks and status in the dashboards that the reference
    block node ships (block-node/app/docker/metrics/dashboards at b81bbd119)."""
    asked = (
        *("publisher_open_connections", "publisher_latest_block_number_acknowledged", "subscriber_open_connections"),
        *("publisher_blocks_ack_sent_total", "publisher_blocks_resend_sent_total", "publisher_blocks_skips_sent_total"),
        *("publisher_block_endofstream_sent_total", "publisher_block_endstream_received_total"),
        *("publisher_block_items_received_total", "publisher_stream_errors_total", "subscriber_errors_total"),
        *("get_block_requests_total", "get_block_requests_success_total", "get_block_requests_not_found_total"),
        *("get_block_requests_not_available_total", "server_status_requests_total", "app_state_status"),
    )
    async with http_node(tmp_path, **BLOCKS) as node:
        await wait_until(lambda: is_ready(node.running))
        port = split_host_port(node.running.server.grpc[0])[1]
        async with raw_client(port) as client:
            publisher = await opened(client)
            await publisher.block(chain_of(1)[0])
            await publisher.wait_for("acknowledgement", 0)
            found = own(await scrape(node))
    assert set(asked) <= found.keys()
    assert not any(map(math.isnan, found.values()))


async def test_a_publisher_that_is_held_back_is_named_while_it_waits_and_afterwards(tmp_path: Path) -> None:
    """Two hosts publish. All blocks wait for the first one, of which one host sends the header only. The other host
    fills its window meanwhile. The dashboard names both, and the metrics go on naming a host that has left."""
    settings = {**BLOCKS, "block_publish_queued_bytes_max": 65_536}
    async with http_node(tmp_path, **settings) as node, node.client() as browser:
        await wait_until(lambda: is_ready(node.running))
        port = split_host_port(node.running.server.grpc[0])[1]
        async with raw_client(port, "127.0.0.2") as calm:
            idle = await opened(calm)
            await idle.header(0)
            async with raw_client(port, "127.0.0.3") as eager:
                busy = await opened(eager)
                await busy.header(1)
                item = b"\x1a\xa0\xc2\x1e" + bytes(500_000)
                message = framed(write_message("PublishStreamRequest", {"block_items": {"block_items": [item]}}))
                at = 0
                with trio.fail_after(30):
                    while room := await window_of(eager, busy.stream_id, at):
                        step = min(room, eager.h2.max_outbound_frame_size, len(message) - at % len(message))
                        eager.h2.send_data(busy.stream_id, message[at % len(message) :][:step])
                        at += step
                        await eager.flush()
                held = await windows(node)
                assert held[CALM] == 0
                assert 0 < held[EAGER] < (await windows(node))[EAGER]
                page = (await get(browser, "/blocks")).text
                assert "gRPC 127.0.0.3" in page
                assert "held back" in page
                assert "Could send nothing for" in page
            await wait_until(lambda: grpc_of(node.running).open == 1)
            gone = await windows(node)
        assert gone[EAGER] > held[EAGER]
        assert (await windows(node))[EAGER] == gone[EAGER]


async def windows(node: HttpNode) -> dict[str, float]:
    samples = await scrape(node)
    return {dict(labels)["publisher"]: value for (name, labels), value in samples.items() if name == WINDOWS}


async def window_of(client: RawClient, stream_id: int, sent_bytes: int) -> int:
    """The window of a call, after the larger one of an admitted publisher has come."""
    while sent_bytes < 9_000_000:
        room = client.h2.local_flow_control_window(stream_id)
        if room:
            return room
        with trio.move_on_after(0.5) as patience:
            await client.receive()
        if patience.cancelled_caught:
            return 0
    return 0
