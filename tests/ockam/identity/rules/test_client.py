"""Goal: our clients say which right is missing, and which rule forbids it. Method: real nodes, both clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ockam.identity.rules.rights import ALL_RIGHTS, Right
from ockam.identity.rules.rules import Rule
from stream_client import AccessDenied, Stream, connect
from stream_client.blocking import connect as connect_blocking
from tests.ockam.identity.rules.guarded_node import guarded, may

NO_PUSHES = Rule("no pushes", ("*",), may_not=Right.WRITE | Right.DELETE | Right.SHARE, on=("",))
OPEN = may(ALL_RIGHTS)


async def test_every_kind_of_request_raises_the_same_error(tmp_path: Path) -> None:
    async with guarded(tmp_path, OPEN, NO_PUSHES) as node, connect(node.running.address) as client:
        stream = await client.create("orders")
        for act in (stream.push(b"x"), stream.push(b"x", key=b"k"), stream.delete(), stream.truncate(0)):
            with pytest.raises(AccessDenied) as caught:
                await act
            assert (caught.value.rule, caught.value.retriable, caught.value.in_doubt) == ("no pushes", False, False)
            assert caught.value.right in ("write", "delete")
            assert "'orders'" in str(caught.value)


async def test_a_publisher_that_may_not_push_is_told_once(tmp_path: Path) -> None:
    """A publisher with numbers sends nothing again, since nothing was stored."""
    async with guarded(tmp_path, OPEN, NO_PUSHES) as node, connect(node.running.address) as client:
        stream = await client.create("orders")
        with pytest.raises(AccessDenied, match="write on 'orders' for anonymous"):
            await publish(stream)
        assert node.refused()["write"] <= 2
        assert not (await stream.pull(0, 10))


async def publish(stream: Stream) -> None:
    async with stream.publisher() as publisher:
        push = await publisher.push(b"x")
        await publisher.flush()
        push.result()


async def test_a_client_without_any_right_is_told_so(tmp_path: Path) -> None:
    async with guarded(tmp_path) as node, connect(node.running.address) as client:
        with pytest.raises(AccessDenied) as caught:
            await client.create("orders")
        assert (caught.value.right, caught.value.rule) == ("create", None)
        with pytest.raises(AccessDenied):
            [each async for each in client.list_streams()]


async def test_a_consumer_needs_its_rights(tmp_path: Path) -> None:
    rules = (may(Right.READ, "orders"), may(Right.INDEX, "billing", name="two"))
    async with guarded(tmp_path, OPEN) as node:
        async with connect(node.running.address) as client:
            stream = await client.create("orders")
            await stream.push(b"x")
        node.allow(*rules)
        async with connect(node.running.address) as client:
            stream = await client.create("orders")
            async with stream.consumer("billing") as consumer:
                assert (await anext(aiter(consumer))).data == b"x"
            with pytest.raises(AccessDenied, match="index on 'other'"):
                async with stream.consumer("other") as consumer:
                    await anext(aiter(consumer))


async def test_the_blocking_client_raises_it_too(tmp_path: Path) -> None:
    async with guarded(tmp_path, OPEN, NO_PUSHES) as node:

        def run() -> None:
            with connect_blocking(node.running.address) as client:
                with pytest.raises(AccessDenied) as caught:
                    client.create("orders").push(b"x")
                assert (caught.value.right, caught.value.rule) == ("write", "no pushes")

        await trio.to_thread.run_sync(run)
