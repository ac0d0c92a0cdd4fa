"""Goal: the three clients do the same. Method: one scenario each, against a real server, through every shell.

Here: messages as record batches of Arrow, read by DuckDB and Polars, too, which share no code with the client.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from spark_export import decoder
from stream_client import StreamClient
from tests.client.shells import Tools, World

COUNT = 2_500
"""More messages than the node sends in one page."""


async def orders(client: StreamClient, name: str, partitions: int = 1) -> Any:
    """A stream, or its partitions, with that many messages in all: some with a key, some with headers."""
    made = client.create(name) if partitions == 1 else client.create_partitioned(name, partitions)
    stream: Any = await made
    for at in range(3):
        await stream.push(b'{"id":%d}' % at, key=f"k{at}", headers={"trace": b"\0", "at": b"%d" % at})
    async with stream.publisher() as publisher:
        for at in range(3, COUNT):
            await publisher.push(b'{"id":%d,"amount":%d.25}' % (at, at))
    return stream


def test_a_stream_is_a_reader_of_arrow(world: World) -> None:
    """Goal: every message once, in order, with all that it has. Method: the pages of `pull_page`."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await orders(client, world.name)
            table = (await stream.to_arrow()).read_all()
            assert table.schema.names == ["stream", "partition", "index", "timestamp", "key", "data", "headers"]
            assert table["index"].to_pylist() == list(range(COUNT))
            pages, at = [], 0
            while at < COUNT:
                page = await stream.pull_page(at)
                pages += page.messages
                at = page.resume_index
            assert table["timestamp"].cast("int64").to_pylist() == [each.time_us for each in pages]
            assert table["data"].to_pylist() == [each.data for each in pages]
            assert table["key"].to_pylist() == [each.key for each in pages]
            headers = [{"key": "trace", "value": b"\0"}, {"key": "at", "value": b"1"}]
            assert (table["headers"][1].as_py(), table["headers"][3].as_py()) == (headers, None)

    world.run(scenario)


def test_a_reader_begins_and_ends_where_it_is_told(world: World) -> None:
    """Goal: messages that are pushed later are not read, and the first and the last one of a range are."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await orders(client, world.name)
            for start, end, wanted in (
                (10, 20, (10, 20)),
                (2_400, 9_999, (2_400, COUNT)),
                (5, 5, (0, 0)),
                (0, 0, (0, 0)),
            ):
                reader = await stream.to_arrow(start, end, page_messages=7)
                assert reader.read_all()["index"].to_pylist() == list(range(*wanted))
            reader = await stream.to_arrow(COUNT - 2)
            async with tools.connect() as other:
                await (await other.get_stream(world.name)).push(b"later")
            assert reader.read_all().num_rows == 2
            empty = await client.create(world.name + " empty")
            assert (await empty.to_arrow()).read_all().num_rows == 0

    world.run(scenario)


AMOUNTS = "id INT, amount DECIMAL(10,2), _problem STRING"
SUM = COUNT * (COUNT - 1) // 2


def test_duckdb_reads_decoded_messages_of_all_partitions(world: World) -> None:
    """Goal: one line of SQL over a stream. Method: the sums that DuckDB computes, and Python's."""
    duckdb = pytest.importorskip("duckdb", reason="the extra `store-tests` is not installed")

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            streams = await orders(client, world.name, partitions=3)
            connection = duckdb.connect()
            connection.register("messages", await streams.to_arrow(decode=decoder("json", AMOUNTS)))
            query = "SELECT count(*), sum(id), sum(amount), count(DISTINCT partition) FROM messages"
            (found,) = connection.sql(query).fetchall()
            assert [float(each) for each in found] == [COUNT, SUM, SUM - 3 + (COUNT - 3) * 0.25, 3]

    world.run(scenario)


def test_polars_reads_decoded_messages(world: World) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await orders(client, world.name)
            frame = polars.from_arrow(await stream.to_arrow(decode=decoder("json", AMOUNTS)))
            assert (frame.height, frame["id"].sum(), frame["_problem"].null_count()) == (COUNT, SUM, COUNT)

    world.run(scenario)


def test_an_error_while_the_reader_is_read_is_that_error(world: World) -> None:
    """Goal: a decoder that fails ends the read with its own error, and no rows are missing in silence."""

    def fails(batch: Any) -> Any:
        if batch.num_rows and batch["index"][0].as_py():
            raise ValueError("not this batch")
        return batch

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await orders(client, world.name)
            with pytest.raises(ValueError, match="not this batch"):
                (await stream.to_arrow(decode=fails)).read_all()

    world.run(scenario)
