"""Goal: a Python program passes what is natural (text, a dictionary of headers, the name of a consumer), and a value
that cannot be sent is a ClientError that says what to pass. Method: one scenario each, against a real server, through
every shell; what is stored is read back by pulls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, cast

import pytest

from stream_client import (
    FromEnd,
    Header,
    InvalidArgument,
    PartitionedStream,
    RequestRefused,
    Retention,
    Stream,
    blocking,
)
from stream_client.arguments import BytesLike, to_address
from stream_client.consume.page import ConsumerOptions
from tests.client.shells import Tools, World


def test_text_is_stored_in_utf_8_and_headers_may_be_a_dictionary(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            await stream.push("fünf")
            headers: dict[str, BytesLike] = {"type": "text/plain", "raw": b"\xff"}
            await stream.push(bytearray(b"six"), key="schlüssel", headers=headers)
            async with stream.publisher() as publisher:
                await publisher.push("seven")
                await publisher.push(memoryview(b"eight"), headers=[("a", "1"), Header("a", b"2")])
                await publisher.push_many(["nine", b"ten"])
            partitioned = await client.create_partitioned(world.name, 3)
            chosen = partitioned.partition_for("kunde").partition
            await partitioned.push("by key", key="kunde")
            async with partitioned.publisher() as spread:
                assert (await spread.push("by partition key", partition_key="kunde")).partition == chosen
            page = await stream.pull_page()
            stored = [
                (each.data, each.key, [(head.name, head.value) for head in each.headers]) for each in page.messages
            ]
            assert stored[:6] == [
                ("fünf".encode(), None, []),
                (b"six", "schlüssel".encode(), [("type", b"text/plain"), ("raw", b"\xff")]),
                (b"seven", None, []),
                (b"eight", None, [("a", b"1"), ("a", b"2")]),
                (b"nine", None, []),
                (b"ten", None, []),
            ]
            by_key = await partitioned.get_partition(chosen).pull_page()
            assert [each.data for each in by_key.messages][-2:] == [b"by key", b"by partition key"]

    world.run(scenario)


def test_a_name_is_enough_for_a_consumer_and_for_a_group(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 2)
            for partition in stream.partitions:
                await partition.push("one")
                await partition.push("two")
            async with stream.partitions[0].consumer("alone") as consumer:
                assert [each.data async for each in consumer.messages(stop_at_end=True)] == [b"one", b"two"]
            async with stream.consumer("both") as both:
                assert len([each async for each in both.messages(stop_at_end=True)]) == 4
            async with stream.shared_consumer("group") as member:
                assert len([each async for each in member.messages(stop_at_end=True)]) == 4
            saved = [
                await tools.saved_indexes(client, name).get(world.name, partition)
                for name in ("alone", "both", "group")
                for partition in (0, 1)
            ]
            assert saved == [2, 0, 2, 2, 2, 2]

    world.run(scenario)


def test_what_cannot_be_sent_is_a_client_error_that_says_what_to_pass(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as found:
            client: Any = found
            stream = await client.create(world.name)
            both = await client.create_partitioned(world.name, 2)
            me = await client.correspondent()
            saved: Any = partial(tools.saved_indexes, client)
            calls: list[tuple[Callable[[], Any], str]] = [
                (lambda: stream.push(5), "the data of a message is bytes or str, not int"),
                (lambda: stream.push({"a": 1}), "not dict; encode it first, for example as JSON"),
                (lambda: stream.push("\ud800"), "cannot be written in UTF-8"),
                (lambda: stream.push(b"", key=7), "a key is bytes or str, not int"),
                (lambda: stream.push(b"", headers="a: b"), "headers are a dictionary, or a list of"),
                (lambda: stream.push(b"", headers=["a"]), "a header is .name, value. or a Header, not 'a'"),
                (lambda: stream.push(b"", headers={1: b""}), "the name of a header is str, not int"),
                (lambda: stream.push(b"", headers={"a": 1}), "the value of the header 'a' is bytes or str, not int"),
                (lambda: both.push(b"", partition_key=1), "a partition key is bytes or str, not int"),
                (lambda: stream.pull("first"), "^index must be an int, not str$"),
                (lambda: stream.pull(-1), f"^index must be from 0 to {2**64 - 1}$"),
                (lambda: stream.pull_page(-1), "^start must be from 0 to "),
                (lambda: stream.pull_page(FromEnd(-1)), "^start must be from 0 to "),
                (lambda: stream.pull_page(wait_s=-1), "^wait_s must be from 0 to "),
                (lambda: stream.truncate(-1), "^before must be from 0 to "),
                (lambda: stream.set_retention(Retention(age_s=cast(int, "1d"))), "^age_s must be an int, not str$"),
                (lambda: client.create(5), "^the name of a stream must be a str, not int$"),
                (lambda: client.create("\ud800"), "^the name of a stream has no UTF-8 form"),
                (lambda: client.create_partitioned("p", -1), "^the number of partitions must be from 0 to "),
                (lambda: client.get_stream(b"s"), "^the name of a stream must be a str, not bytes$"),
                (lambda: saved(5).get("s"), "^the name of a consumer must be a str, not int$"),
                (
                    lambda: saved("c").get("s", -1),
                    "^the number of a partition must be from 0 to ",
                ),
                (lambda: saved("c").save("s", {0: "1"}), "^index '1' cannot be saved"),
                (
                    lambda: saved("c").save("s", {"0": 1}),
                    "^the number of a partition must be an int",
                ),
                (lambda: me.send("other", ("echo",), b""), "^a route is a sequence of Address"),
                (lambda: me.send("other", (), 5), "^a payload is bytes or str, not int"),
                (lambda: stream.truncate("first"), "what to delete is before an index or a time, not before a str"),
                (lambda: stream.set_retention(7), "what to keep is a Retention, or None for the node's default, not"),
            ]
            for call, said in calls:
                with pytest.raises(InvalidArgument, match=said):
                    await call()
            makes: list[tuple[Callable[[], Any], str]] = [
                (lambda: stream.consumer(""), "the name of a consumer is empty"),
                (lambda: stream.consumer(5), "a consumer takes its name"),
                (lambda: both.shared_consumer(None), "a consumer takes its name"),
                (
                    lambda: stream.follow("first"),
                    "reading begins at an index, a time, FIRST, LAST or NEW, not at a str",
                ),
                (lambda: stream.follow(datetime(2026, 11, 1)), "has no time zone"),
                (lambda: stream.follow(page_messages=0), "a page has at least 1"),
                (lambda: stream.publisher(window=0), "at least 1 push"),
                (lambda: stream.publisher(publisher_id=""), "a publisher id is not empty"),
                (lambda: stream.publisher(publisher_id=5), "a publisher id is bytes or str, not int"),
                (lambda: stream.publisher(publisher_id="a", first_number=-1), "first_number must be an int"),
            ]
            for make, said in makes:
                with pytest.raises(InvalidArgument, match=said):
                    make()
            assert (await stream.info()).count == 0
            assert await stream.push("and the connection lives") == 0

    world.run(scenario)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:4001/", "is not HOST:PORT .for example 127.0.0.1:4001"),
        ("", "is not HOST:PORT"),
        ("localhost:http", "is not HOST:PORT"),
        ("a..b:4001", "is not HOST:PORT .for example 127.0.0.1:4001"),
        (4000, "is a str such as '127.0.0.1:4000', not int"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(world: World, address: Any, said: str) -> None:
    async def scenario(tools: Tools) -> None:
        with pytest.raises(InvalidArgument, match=said):
            async with tools.connect(address=address):
                pass

    world.run(scenario)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", "localhost:4000"),
        ("127.0.0.1", "127.0.0.1:4000"),
        ("::1", "[::1]:4000"),
        ("[::1]:5", "[::1]:5"),
        (" localhost:7 ", "localhost:7"),
    ],
)
def test_an_address_without_a_port_means_port_4000(text: str, address: str) -> None:
    assert to_address(text) == address


def test_objects_tell_what_they_are(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:

            def shown(each: Any) -> str:
                return repr(getattr(each, "_value", each))

            assert shown(client) == f"<StreamClient of {world.address}, connected>"
            stream = await client.create(world.name)
            name = repr(world.name)
            assert shown(await client.get_stream(world.name)) == (
                f"<PartitionedStream {name}, 1 partition, of {world.address}>"
            )
            both = await client.create_partitioned(world.name, 2)
            assert shown(stream) == f"<Stream {name}, partition 0, of {world.address}>"
            assert shown(both) == f"<PartitionedStream {name}, 2 partitions, of {world.address}>"
            async with stream.publisher(window=10) as publisher:
                push = await publisher.push("12345")
                assert shown(publisher).startswith(f"<Publisher of {name}, partition 0: ")
                await publisher.wait(push)
            assert repr(push) == "<Push of 5 bytes to partition 0, stored at 0>"
            follower = stream.follow(stop_at_end=True)
            assert shown(follower) == f"<Follower of {name}, partition 0: nothing read>"
            assert [each.data async for each in follower] == [b"12345"]
            assert shown(follower) == f"<Follower of {name}, partition 0: read to before 1>"
            async with stream.consumer("me") as consumer:
                assert shown(consumer) == f"<Consumer 'me' of {name}, partition 0: 0 processed>"
            assert shown(tools.saved_indexes(client, "me")) == "<SavedIndexes of 'me'>"
            async with stream.publisher(keep_failed=True) as failing:
                failed = await failing.push(b"", key=bytes(5000))
            assert repr(failed).startswith("<Push of 0 bytes to partition 0, failed: a key of 5000 bytes")
            assert isinstance(failed.error, RequestRefused)

    world.run(scenario)


@pytest.mark.parametrize(
    "function",
    [
        Stream.consumer,
        PartitionedStream.consumer,
        PartitionedStream.shared_consumer,
        blocking.Stream.consumer,
        blocking.PartitionedStream.consumer,
        blocking.PartitionedStream.shared_consumer,
    ],
)
def test_help_shows_every_option_with_its_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    for name in ConsumerOptions.__struct_fields__:
        assert shown[name].default == getattr(ConsumerOptions(), name)
    told = " ".join((inspect.getdoc(function) or "").split())
    assert "are those of `Stream.consumer`." in told or all(
        f"{name}:" in told for name in ConsumerOptions.__struct_fields__
    )
