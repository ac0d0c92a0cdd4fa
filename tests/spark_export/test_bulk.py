"""Goal: a range read in bulk is that range, whole, or an error. Method: a real node, its child, real sockets."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from spark_export.errors import BadAnswer, DataLoss, SourceUnreachable
from spark_export.source.catalog import find_catalog, selected
from spark_export.source.node import connected
from spark_export.source.options import ReadOptions, read_options
from spark_export.source.plan import ReadRange
from spark_export.source.range_reader import RangeReader, read_batch, read_page
from stream_client import Header, RequestRefused, blocking
from stream_node.node.process import NodeProcess
from stream_service.bulk import BULK, BulkPage, BulkRead, page_payload, split_page
from stream_storage.sqlite.bulk.arrow_pages import ipc_size_bytes, write_ipc
from tests.metrics.test_metrics import scrape, value
from tests.spark_export.doors import door
from tests.stream_node.doors.http.http_node import http_node
from tests.support.stream_peer import stream_peer

pytestmark = pytest.mark.spark

UINT = st.integers(0, 2**64 - 1)


def options_for(node: NodeProcess, stream: str, **more: str) -> ReadOptions:
    return read_options({"endpoint": node.address, "subscribe": stream, **more})


def read_all(wanted: ReadRange, options: ReadOptions, *, in_bulk: bool = True) -> pa.Table:
    """All rows; in_bulk: whether the node must have served them so to the end."""
    reader = RangeReader(wanted, options)
    batches = list(reader.batches())
    assert (reader.bulk_refusal is None) == in_bulk, reader.bulk_refusal
    return pa.Table.from_batches(batches)


def read_by_pulls(node: NodeProcess, wanted: ReadRange, options: ReadOptions) -> pa.Table:
    with connected(options) as client:
        return pa.Table.from_batches(list(RangeReader(wanted, options)._pulls(client)))


def push(node: NodeProcess, stream: str, messages: list[bytes]) -> None:
    with blocking.connect(node.address) as client, client.create(stream).publisher() as publisher:
        publisher.push_many(messages)


def test_rows_are_the_messages(node: NodeProcess) -> None:
    """Goal: data, keys, headers, times and indexes arrive as they were pushed, in bulk and by pulls alike.

    Method: both ways of reading a stream with all of it, and none of it, compared.
    """
    with blocking.connect(node.address) as client:
        stream = client.create("mixed")
        for number in range(300):
            headers = [Header("h", bytes([number % 7])), Header("h", b"")] if number % 3 == 0 else []
            stream.push(b"x" * (number % 50), key=b"k%d" % number if number % 2 else None, headers=headers)
    options = options_for(node, "mixed", includeHeaders="true", verifyChecksums="true")
    wanted = ReadRange("mixed", 0, 5, 295)
    in_bulk = read_all(wanted, options)
    assert in_bulk.equals(read_by_pulls(node, wanted, options))
    assert in_bulk.schema.field("key").nullable
    rows = in_bulk.to_pylist()
    assert [row["index"] for row in rows] == list(range(5, 295))
    assert rows[1]["headers"] == [{"key": "h", "value": bytes([6])}, {"key": "h", "value": b""}]
    assert rows[0]["headers"] is None
    assert (rows[0]["key"], rows[1]["key"]) == (b"k5", None)


def test_one_key_among_thousands_of_plain_messages(node: NodeProcess) -> None:
    """Goal: a page of plain messages, which is read more cheaply, hides nothing of the others. Method: pages of 4,096
    rows and more, with one key, one header, and a message larger than a page, between plain ones."""
    plain = [b"p%d" % number for number in range(5_000)]
    with blocking.connect(node.address) as client:
        stream = client.create("rare")
        for more in ({"key": b"k"}, {"headers": [Header("h", b"v")]}, {}):
            with stream.publisher() as publisher:
                publisher.push_many(plain)
            stream.push(b"rare" if more else b"L" * 9_000_000, **more)
    table = read_all(ReadRange("rare", 0, 0, 15_003), options_for(node, "rare", includeHeaders="true"))
    assert table.column("data").to_pylist() == [*plain, b"rare", *plain, b"rare", *plain, b"L" * 9_000_000]
    assert [index for index, key in enumerate(table.column("key").to_pylist()) if key is not None] == [5_000]
    assert [index for index, headers in enumerate(table.column("headers").to_pylist()) if headers] == [10_001]


def test_pages_grow_and_shrink_with_the_messages(node: NodeProcess) -> None:
    """Goal: small and large messages mixed are read whole, within the frame. Method: sizes from 0 to 3 MiB."""
    sizes = [0, 10, 3_000_000, 100, 200_000, 5] * 6 + [20] * 3_000 + [2_500_000, 1]
    push(node, "sizes", [bytes([size % 251]) * size for size in sizes])
    table = read_all(ReadRange("sizes", 0, 0, len(sizes)), options_for(node, "sizes", fetchBytes="65536"))
    assert [len(data) for data in table.column("data").to_pylist()] == sizes


def test_without_data_only_the_rest_is_read(node: NodeProcess) -> None:
    """Goal: `includeData=false` leaves the column out."""
    push(node, "thin", [b"x"] * 10)
    table = read_all(ReadRange("thin", 0, 0, 10), options_for(node, "thin", includeData="false"))
    assert table.schema.names == ["key", "stream", "partition", "index", "timestamp"]
    assert table.column("index").to_pylist() == list(range(10))


async def test_bulk_reads_count_like_pulls(tmp_path: Path) -> None:
    """Goal: the metrics show what Spark reads. Method: one bulk read of three messages, and the metrics."""
    async with http_node(tmp_path) as node, stream_peer(node.running.address) as peer:
        route = await peer.create("read")
        for data in (b"one", b"three", b"eleven"):
            await peer.push(route, data)
        request = BulkRead(1, 0, 3, 1 << 20, data=True, beside=False, checksum=False)
        payload = (await peer.ask(route, BULK.encode_request(request))).payload
        assert split_page(payload)[0].rows == 3
        counted = ("pulls_total", "pulled_messages_total", "pulled_bytes_total")
        samples = await scrape(node)
        assert [value(samples, name) for name in counted] == [1, 3, len(payload)]


def test_a_cut_arrow_stream_is_noticed() -> None:
    """Trap of the facts, section 0.6: Arrow IPC that is cut between two messages is a valid stream with fewer rows.

    Method: a page whose stream has its schema and no rows, as a server leaves it that fails after the schema.
    """
    batch = pa.RecordBatch.from_pydict({"index": pa.array([4, 5]), "data": pa.array([b"a", b"b"])})
    written = bytearray(ipc_size_bytes(batch))
    write_ipc(batch, memoryview(written))
    stream = bytes(written)
    schema_only = stream[: pa.ipc.read_message(pa.py_buffer(stream)).metadata.size + 8]
    assert read_batch(memoryview(schema_only)) is None
    payload = page_payload(BulkPage(1, 1, 0, 0, 6, 4, 2, b""), schema_only)
    with pytest.raises(BadAnswer, match="a page of 0 rows where 2 were announced"):
        read_page(payload)
    for cut in range(1, 40):
        with pytest.raises(BadAnswer, match="not an answer to a node/stream_bulk/1"):
            read_page(payload[:-cut])


def test_a_server_that_fails_in_the_middle_is_noticed(node: NodeProcess) -> None:
    """Goal: a connection that ends inside a range is tried again from there, and nothing is lost or doubled.

    Method: a door that ends the first two connections after some bytes; then one that lets none through.
    """
    push(node, "breaks", [b"%06d" % number for number in range(5_000)])
    wanted = ReadRange("breaks", 0, 0, 5_000)
    with door(node.address, [90_000, 90_000]) as address:
        table = read_all(wanted, options_for(node, "breaks", endpoint=address, fetchBytes="20000"))
    assert table.column("data").to_pylist() == [b"%06d" % number for number in range(5_000)]
    with (
        door(node.address, [30] * 1_000) as address,
        pytest.raises(SourceUnreachable) as raised,
    ):
        read_all(wanted, options_for(node, "breaks", endpoint=address, requestTimeoutMs="1000"))
    assert "breaks/0 was read up to 0 of 5000 and no further" in raised.value.__notes__


def test_what_retention_took_is_a_loss_or_skipped(node: NodeProcess, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a range that was planned and is gone fails by default, and is reported where it is skipped.

    Method: a range planned before a truncation and read after it, and one that is gone altogether.
    """
    push(node, "eaten", [b"x"] * 100)
    with blocking.connect(node.address) as client:
        client.create("eaten").truncate(40)
    with pytest.raises(DataLoss, match=r"eaten/0 indexes 10 to 39: deleted by retention.*first is now 40"):
        read_all(ReadRange("eaten", 0, 10, 60), options_for(node, "eaten"))
    loose = options_for(node, "eaten", failOnDataLoss="false")
    assert read_all(ReadRange("eaten", 0, 10, 60), loose).column("index").to_pylist() == list(range(40, 60))
    assert "skipped, failOnDataLoss=false: eaten/0 indexes 10 to 39" in caplog.text
    assert list(RangeReader(ReadRange("eaten", 0, 10, 30), loose).batches()) == []


def test_a_stream_made_again_is_not_taken_for_the_old_one(node: NodeProcess) -> None:
    """Goal: rows of another stream under the same name are not read into a planned range.

    Method: a stream deleted and made again with as many messages, read in bulk and by pulls.
    """
    push(node, "again", [b"old"] * 10)
    options = options_for(node, "again")
    (end,) = selected(options, find_catalog(options)).values()
    with blocking.connect(node.address) as client:
        client.create("again").delete()
    push(node, "again", [b"new"] * 10)
    with pytest.raises(DataLoss, match="deleted and made again"):
        read_all(ReadRange("again", 0, 0, 10, end.created_us), options)
    with pytest.raises(DataLoss, match="deleted and made again"):
        read_by_pulls(node, ReadRange("again", 0, 0, 10, end.created_us), options)


def test_what_was_just_pushed_is_read(node: NodeProcess) -> None:
    """Goal: the child sees each commit. Method: push and read in turn.

    A connection of ADBC's that is not in autocommit keeps the state of its first read for ever, and keeps the
    write-ahead log from starting anew.
    """
    for number in range(1, 6):
        push(node, "fresh", [b"x"])
        assert read_all(ReadRange("fresh", 0, 0, number), options_for(node, "fresh")).num_rows == number


def test_a_range_beyond_the_end_is_refused(node: NodeProcess) -> None:
    """Goal: the node says no to a range that it cannot have; the reader says what is lost. Method: both, asked."""
    push(node, "short", [b"x"] * 3)
    with blocking.connect(node.address) as client:
        (handle,) = client.session.core.find_handles("short", [0])
        with pytest.raises(RequestRefused, match="a range from 0 to 9; this stream ends at 3"):
            client.session.ask(handle, BULK, BulkRead(1, 0, 9, 1000, True, True, False))
    with pytest.raises(DataLoss, match="short/0 indexes 3 to 8: the stream ends at 3"):
        read_all(ReadRange("short", 0, 0, 9), options_for(node, "short"))


def test_the_child_may_die(tmp_path: Path) -> None:
    """Goal: a bulk reader that is killed is started anew by the next read.

    Method: SIGKILL to the node's child between two reads; then the node is killed, and the child ends by itself.
    """
    with NodeProcess(tmp_path / "data") as node:
        push(node, "s", [b"x"] * 2_000)
        wanted = ReadRange("s", 0, 0, 2_000)
        for _ in range(2):
            assert read_all(wanted, options_for(node, "s")).num_rows == 2_000
            (child,) = children_of(node.pid)
            os.kill(child, signal.SIGKILL)
            wait_until_gone(child)
        assert read_all(wanted, options_for(node, "s")).num_rows == 2_000
        (child,) = children_of(node.pid)
        node.kill()
        wait_until_gone(child)


def test_a_node_stops_with_its_child(tmp_path: Path) -> None:
    """Goal: SIGTERM ends both in good order."""
    with NodeProcess(tmp_path / "data") as node:
        push(node, "s", [b"x"])
        read_all(ReadRange("s", 0, 0, 1), options_for(node, "s"))
        (child,) = children_of(node.pid)
        assert node.stop() == 0
        wait_until_gone(child)


def test_a_child_that_cannot_live_is_not_started_for_ever(tmp_path: Path) -> None:
    """Goal: a read that no child answers is refused, and the messages come by pulls. Method: children that end."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, sys\nif 'stream_storage.sqlite.bulk.child_main' in sys.orig_argv:\n    os._exit(3)\n"
    )
    with NodeProcess(tmp_path / "data", environment={"PYTHONPATH": str(hook)}) as node:
        push(node, "s", [b"x"] * 100)
        reader = RangeReader(ReadRange("s", 0, 0, 100), options_for(node, "s"))
        assert sum(batch.num_rows for batch in reader.batches()) == 100
        assert "the process that reads in bulk ended" in (reader.bulk_refusal or "")


def test_a_node_without_the_packages_is_read_by_pulls(tmp_path: Path) -> None:
    """Goal: a node that lacks ADBC says so and is read all the same. Method: packages of that name that are hidden."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'adbc_driver_sqlite':\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    with NodeProcess(tmp_path / "data", environment={"PYTHONPATH": str(hook)}) as node:
        push(node, "s", [b"%d" % number for number in range(3_000)])
        table = read_all(ReadRange("s", 0, 0, 3_000), options_for(node, "s"), in_bulk=False)
        assert table.column("data").to_pylist() == [b"%d" % number for number in range(3_000)]


@given(UINT, UINT, UINT, UINT, UINT, UINT, st.binary(max_size=70_000))
def test_a_bulk_page_is_the_protocols(
    number: int, stream_id: int, first: int, end: int, start: int, rows: int, arrow: bytes
) -> None:
    """Goal: the payload that is put together around its megabytes is the one that the protocol describes.

    Method: the general encoder, beside it.
    """
    page = BulkPage(number, stream_id, 7, first, end, start, rows, b"")
    payload = page_payload(page, arrow)
    assert payload == BULK.encode_response(structs.replace(page, arrow=arrow))
    head, found = split_page(payload)
    assert (structs.astuple(head), bytes(found)) == (structs.astuple(page)[:-1], arrow)


def children_of(pid: int) -> list[int]:
    """Processes whose parent is that one."""
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
        if found:
            return sorted(set(found))
        threading.Event().wait(0.05)
    return []


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline_s, f"process {pid} is still there"
        threading.Event().wait(0.05)
