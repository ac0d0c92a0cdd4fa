"""Goal: the metrics tell what a node has done, under bounded names, to whom may know it.

Method: real nodes are used by the client, and `/metrics` is read over a socket. The parser of prometheus-client reads
the text.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import trio
from cryptography import x509
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from block_node.backfill.metrics import METRICS as BACKFILL
from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from stream_client import SavedIndexes, connect
from stream_node.doors.metrics.catalogue import METRICS
from stream_node.node.config import Config
from stream_node.node.identity.endings import read_endings
from stream_node.node.process import NodeProcess
from stream_service.appending import APPEND, AppendedMessage, AppendRequest
from stream_service.protocol import PUSH, PushRequest
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import get
from tests.stream_node.doors.http.http_node import HttpNode, http_node
from tests.stream_node.fleet.workers.test_workers import wait_for
from tests.stream_node.forwarding.forwarding_peers import connect as connect_peer
from tests.support.certificates import Authority
from tests.support.stream_peer import stream_peer

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(node: HttpNode) -> Samples:
    """All samples by name and labels. The parser refuses a text that is not valid."""
    async with node.client() as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def test_each_worker_measures_its_own_database(tmp_path: Path) -> None:
    """Goal: no worker looks for the database in the folder that all share. Method: the real command, with the ports
    that the log of each worker tells."""
    with NodeProcess(tmp_path / "data", arguments=("--workers", "2", "--http", "127.0.0.1:0")) as node:
        wait_for(lambda: node.log_file.read_text().count('"event": "started"') == 2)
        lines = [json.loads(line) for line in node.log_file.read_text().splitlines()]
        for door in [line["http"][0] for line in lines if line["event"] == "started"]:
            text = httpx.get(f"http://{door}/metrics", timeout=30).text
            (family,) = (each for each in text_string_to_metric_families(text) if each.name == "stream_node_file_bytes")
            assert next(each.value for each in family.samples if each.labels["file"] == "database") > 0


async def test_openmetrics_and_gzip_are_spoken(tmp_path: Path) -> None:
    """Another parser, of OpenMetrics, finds the same names; each coding holds the same text; nonsense in a header is
    answered with the plain text."""
    async with http_node(tmp_path) as node, node.client() as client, connect(node.running.address) as streams:
        await (await streams.create("orders")).push(b"one")

        async def ask(accept: str, coding: str) -> httpx.Response:
            return await client.get("/metrics", headers={"accept": accept, "accept-encoding": coding})

        plain = await ask("*/*", "identity")
        assert (plain.headers["content-type"][:25], plain.headers.get("content-encoding")) == (
            "text/plain; version=0.0.4",
            None,
        )
        modern = await ask("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3", "gzip")
        assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert modern.headers["content-encoding"] == "gzip"
        assert modern.text.endswith("# EOF\n")
        assert int(modern.headers["content-length"]) < len(modern.content) / 4
        names = {each.name for each in openmetrics_families(modern.text)}  # type: ignore[no-untyped-call]
        assert names == {each.name for each in text_string_to_metric_families(plain.text)}
        for accept in ("version=x", "version=99.9", 'version="2.0.0"', "version=1.0.0=1", "version=1.0.0;q=0"):
            wrong = await ask(f"application/openmetrics-text;{accept}", "gzip;q=0, deflate")
            assert (wrong.status_code, wrong.headers["content-type"]) == (200, plain.headers["content-type"])
            assert "content-encoding" not in wrong.headers


def end_of(file: Path) -> float:
    return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()


async def test_the_ends_of_certificates_and_tokens_are_told_before(tmp_path: Path) -> None:
    """A token near its end is in trouble; a fresh one that lasts an hour, and one without an end, are not."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node", hosts=("127.0.0.1",))
    now_s = int(time.time())
    tokens = tmp_path / "data" / "tokens.json"
    for name, began_s, lasts_s in (("soon", now_s - 86_400, 86_500), ("fresh", now_s, 3_600), ("endless", now_s, None)):
        create_token(tokens, name, began_s, None if lasts_s is None else began_s + lasts_s)
    config = Config(data_dir=str(tmp_path / "data"), tls_certificate=str(certificate), tls_certificate_key=str(key))
    found = {(each.kind, each.name): each.ends_s for each in read_endings(config)}
    assert found[("certificate", "tls_certificate")] == end_of(Path(certificate))
    assert {name for kind, name in found if kind == "token"} == {"soon", "fresh"}
    async with http_node(tmp_path) as node:
        samples = await scrape(node)
        assert value(samples, "token_end_timestamp_seconds", token="fresh") == now_s + 3_600
        assert value(samples, "troubles", kind="token_ends") == 1
        assert value(samples, "troubles", kind="certificate_ends") == 0
        async with node.client() as client:
            assert "The token soon ends in" in (await get(client, "")).text


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"stream_node_{name}", tuple(sorted(labels.items()))]


async def test_metrics_count_what_a_client_did(tmp_path: Path) -> None:
    """Pushes, pulls, batches, times, lag and progress are those of the requests that were made."""
    async with http_node(tmp_path) as node, connect(node.running.address) as client:
        stream = await client.create("orders")
        for data in (b"one", b"three", b"eleven"):
            await stream.push(data)
        assert len(await stream.pull(0, 10)) == 3
        await SavedIndexes(client, "reader").save("orders", {0: 1})
        samples = await scrape(node)
        assert value(samples, "pushes_total") == 3
        assert value(samples, "push_bytes_total") == len(b"onethreeeleven")
        assert value(samples, "confirm_seconds_count") == 3
        assert 0 < value(samples, "confirm_seconds_sum") < 60
        assert value(samples, "batch_messages_sum") == 3
        assert value(samples, "sync_seconds_count") == value(samples, "commits_total")
        assert (value(samples, "pulls_total"), value(samples, "pulled_messages_total")) == (1, 3)
        assert value(samples, "stream_messages", stream="orders") == 3
        assert value(samples, "stream_bytes", stream="orders") >= len(b"onethreeeleven")
        assert value(samples, "consumer_lag_messages", client="reader", stream="orders") == 2
        progress = value(samples, "consumer_last_progress_timestamp_seconds", client="reader", stream="orders")
        oldest = value(samples, "stream_oldest_message_timestamp_seconds", stream="orders")
        assert 1_700_000_000 < oldest <= progress
        assert value(samples, "connections", identity="anonymous") == 1
        assert value(samples, "received_bytes_total") > 0
        assert value(samples, "free_disk_bytes") > 0
        assert value(samples, "file_bytes", file="database") > 0
        assert value(samples, "writing") == 1
        assert samples["process_resident_memory_bytes", ()] > 0
        assert "stream_node_access_rules" not in {name for name, _ in samples}


async def test_appends_at_an_expected_index_count_like_pushes(tmp_path: Path) -> None:
    """Goal: the time, the data and the failures of `node/stream_append/1` are in the metrics of pushes, once.

    Method: an append alone; one that arrives behind a push, and waits for it; one to a node without room on its disk.
    """

    def append(expected: int, data: bytes) -> bytes:
        return APPEND.encode_request(AppendRequest(1, expected, None, [AppendedMessage(None, [], data)]))

    async with http_node(tmp_path) as node, stream_peer(node.running.address) as peer:
        route = await peer.create("orders")
        await peer.ask(route, append(0, b"one"))
        samples = await scrape(node)
        assert value(samples, "confirm_seconds_count") == 1
        assert value(samples, "confirm_seconds_sum") > 0
        push = PUSH.encode_request(PushRequest(2, b"three"))
        await peer.stream.send_all(peer.frame(route, push) + peer.frame(route, append(2, b"eleven")))
        await peer.receive()
        assert APPEND.decode_response((await peer.receive()).payload).next_index == 3
        samples = await scrape(node)
        assert (value(samples, "pushes_total"), value(samples, "push_bytes_total")) == (3, len(b"onethreeeleven"))
        assert value(samples, "pushes_failed_total") == 0
    full = tmp_path / "full"
    async with http_node(full, free_disk_bytes_min=2**60) as node, stream_peer(node.running.address) as peer:
        await peer.ask(await peer.create("orders"), append(0, b"one"))
        assert value(await scrape(node), "pushes_failed_total") == 1


async def test_names_are_bounded(tmp_path: Path) -> None:
    """Two of four streams and consumers are named: the largest ones. The others are summed, and no message is lost."""
    async with http_node(tmp_path, metrics_names_max=2) as node, connect(node.running.address) as client:
        for name, count in (("a", 1), ("b", 4), ("c", 2), ("d", 3)):
            stream = await client.create(name)
            for _ in range(count):
                await stream.push(b"x")
            await SavedIndexes(client, f"reader of {name}").save(name, {0: 0})
        samples = await scrape(node)
        written = {
            dict(labels)["stream"]: number
            for (name, labels), number in samples.items()
            if name == "stream_node_stream_written_messages_total"
        }
        assert written == {"b": 4, "d": 3, "_others": 3}
        lag = {
            dict(labels)["client"]: number
            for (name, labels), number in samples.items()
            if name == "stream_node_consumer_lag_messages"
        }
        assert lag == {"reader of b": 4, "reader of d": 3, "_others": 3}


async def test_only_operators_read_metrics(tmp_path: Path) -> None:
    """The names of streams and consumers are in the metrics, so rules decide who reads them. Refusals are counted."""
    file = tmp_path / "access.toml"
    write_rules(file, [may(Right.READ)])
    async with http_node(tmp_path, access_rules=str(file)) as node, node.client() as client:
        assert (await client.get("/metrics")).status_code == 403
        write_rules(file, [may(Right.OPERATE)])
        node.running.server.reload()
        samples = await scrape(node)
        assert value(samples, "access_refused_total", right="operate") == 1
        assert value(samples, "http_requests_total", status="403") == 1


async def test_what_became_of_forwarded_messages_is_counted(tmp_path: Path) -> None:
    """Method: alice's messages are stored, bob's are not. Both are there, then away; two messages wait, one is refused,
    and the two come when alice is back."""

    def figures(samples: Samples) -> list[float]:
        names = ("waiting", "stored_total", "forwarded_total", "refused_total")
        found = [value(samples, "forwarding_addresses", client=client) for client in ("connected", "away")]
        return found + [value(samples, f"forwarding_messages_{name}") for name in names]

    async with http_node(tmp_path, forwarding=True) as node:
        alice, bob, sender = [await connect_peer(node.running) for _ in range(3)]
        await alice.register_own("alice", confirms=True)
        await bob.register_own("bob", stores=False)
        assert figures(await scrape(node)) == [2, 0, 0, 0, 0, 0]
        assert await sender.forward(alice.address, b"one")
        assert await alice.take(1) == [(0, b"one")]
        assert not await sender.forward(bob.address, b"two")
        assert figures(await scrape(node))[3:] == [1, 2, 0]
        await alice.stream.aclose()
        await bob.stream.aclose()
        while figures(await scrape(node))[:2] != [0, 1]:
            await trio.sleep(0.01)
        for data in (b"three", b"four"):
            assert await sender.forward(alice.address, data)
        assert "nobody is connected" in await sender.refused(bob.address, b"five")
        assert figures(await scrape(node)) == [0, 1, 2, 3, 2, 1]
        back = await connect_peer(node.running)
        await back.register_own("alice", confirms=True)
        assert await back.take(2) == [(1, b"three"), (2, b"four")]
        while figures(await scrape(node)) != [1, 0, 0, 3, 4, 1]:
            await trio.sleep(0.01)


async def test_a_node_of_blocks_has_all_metrics(tmp_path: Path) -> None:
    """Every metric of the list can be read, and those of backfill have the names of the specification."""
    on: dict[str, Any] = {"secure_channel_trust_anyone": True, "forwarding": True}
    async with http_node(tmp_path, grpc=("127.0.0.1:0",), **on) as node:
        samples = await scrape(node)
    names = {name for name, _ in samples}
    for specified in ("gaps_detected", "blocks_fetched", "blocks_stored", "fetch_errors", "status", "queue_size"):
        assert samples[f"backfill_{specified}", ()] == (3 if specified == "status" else 0)
    assert value(samples, "blocks") == 0
    always = {metric.name for metric in METRICS if not metric.labels and metric.kind != "histogram"}
    missing = always - names - {metric for metric in always if metric.startswith("stream_node_a")}
    # The node is in no cluster.
    missing = {name for name in missing if not name.startswith("stream_node_cluster_")}
    # The node does not trace.
    missing -= {"stream_node_trace_spans_waiting"}
    # There is no block yet, so there is no first and no last one.
    without_blocks = {"stream_node_block_first", "stream_node_block_last", "stream_node_block_last_acknowledged"}
    inbound = {f"publisher_{each}_block_number_inbound" for each in ("lowest", "highest")}
    of_blocks = {"app_historical_oldest_block", "app_historical_newest_block", *inbound}
    without_blocks |= {f"blocknode_{name}" for name in (*of_blocks, "publisher_latest_block_number_acknowledged")}
    assert missing == without_blocks | {"backfill_missing_blocks"}


def test_the_gauges_of_backfill_are_gauges() -> None:
    """Claim: a gauge of backfill is one for Prometheus, too, as `block backfill status --metrics` says."""
    kinds = {metric.name: metric.kind for metric in METRICS}
    assert {kinds[name] for _, name, kind, _ in BACKFILL if kind == "gauge"} == {"gauge"}


def test_names_follow_the_rules_of_prometheus() -> None:
    """Counters end with `_total`, no name is there twice, and every name has a prefix and a text that is a sentence."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.name.startswith(("stream_node_", "backfill_", "blocknode_")), metric.name
        assert metric.text.endswith("."), metric.name


async def test_a_full_disk_and_a_stop_are_not_ready(tmp_path: Path) -> None:
    """The reasons say what is wrong; the node is live all the same."""
    async with http_node(tmp_path, free_disk_bytes_min=2**60) as node, node.client() as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        (reason,) = answer.json()["reasons"]
        assert "free_disk_bytes_min" in reason
        assert (await client.get("/livez")).status_code == 200
        node.running.server.condition.is_draining = True
        assert len((await client.get("/readyz")).json()["reasons"]) == 2
