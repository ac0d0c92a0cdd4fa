"""Goal: our clients and commands work with real Ockam services, of both eras, as far as these go, and say at once what
they cannot do. Method: a peer that is checked against the captured conversations of real ones, under all shells.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import Address, Route, local
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import FromEnd, Header, NotSupported, Push, StreamClient, connect
from stream_client.core.service_route import index_service_of
from stream_node.cli.client import open_target, with_client
from stream_node.cli.options import GIVEN, NodeOptions, RequestOptions, ServiceOptions
from stream_node.node.process import NodeProcess
from tests.client.shells import ShellName, Tools, run_in
from tests.support.command import Command
from tests.support.real_service import Answer, RealService, real_service
from tests.support.served import PATIENCE_S, served

VECTORS = Path(__file__).parents[1] / "vectors" / "ockam"
WIRES: dict[str, Wire] = {"head": HEAD, "legacy": LEGACY}


@contextmanager
def running(service: RealService, wire: Wire) -> Iterator[str]:
    """The service in a thread of its own, since each shell has its own loop, or none."""
    started, stop, found = threading.Event(), trio.Event(), list[tuple[str, trio.lowlevel.TrioToken]]()

    async def serve() -> None:
        async with real_service(service, wire) as address:
            found.append((address, trio.lowlevel.current_trio_token()))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert started.wait(30)
    address, token = found[0]
    try:
        yield address
    finally:
        trio.from_thread.run_sync(stop.set, trio_token=token)
        thread.join()


@pytest.mark.parametrize("name", ["head_calls", "legacy_calls"])
def test_the_peer_answers_as_the_real_one_did(name: str) -> None:
    """Each captured request is asked, and its answers are the captured ones, but for random names."""
    frames = json.loads((VECTORS / f"{name}.json").read_text())["frames"]
    wire = WIRES[name.partition("_")[0]]
    service = RealService()
    stream: Address | None = None
    ours: dict[int, list[bytes]] = {}
    real: dict[int, list[bytes]] = {}
    for frame in frames:
        body = bytes.fromhex(frame["frame"])
        onward_route, _, _ = wire.decode_routes(body, 0, len(body))
        payload = bytes.fromhex(frame["payload"])
        if frame["direction"] == "server_to_client":
            real.setdefault(frame["connection"], []).append(payload)
            continue
        to = onward_route[0]
        if to.value.startswith(b"ST_S_"):
            assert stream is not None
            to = stream
        for answer in service((to,), payload):
            ours.setdefault(frame["connection"], []).append(answer.payload)
            if to == local("stream"):
                stream = answer.return_route[0]
    for answers in (ours, real):
        for connection, payloads in answers.items():
            answers[connection] = sorted(each for each in payloads if b"generated_" not in each)
    assert ours == real
    assert len(real) >= 10


@pytest.mark.parametrize(
    ("era", "framing"), [("head", "head"), ("head", "auto"), ("legacy", "legacy"), ("legacy", "auto")]
)
def test_plain_operations_work(shell: ShellName, era: str, framing: str) -> None:
    service = RealService()

    async def scenario(tools: Tools) -> None:
        async with tools.connect(service="stream", framing=framing, answer_timeout_s=20.0) as client:
            await client.reached()
            stream = await client.create("orders")
            assert [await stream.push(b"%d" % number) for number in range(3)] == [0, 1, 2]
            async with stream.publisher() as publisher:
                pushes: list[Push] = [await publisher.push(b"%d" % number) for number in range(3, 30)]
            assert [push.index for push in pushes] == list(range(3, 30))
            assert [(each.index, each.data) for each in await stream.pull(28, 10)] == [(28, b"28"), (29, b"29")]
            partitions = (await client.create_partitioned("many", 3)).partitions
            assert [await each.push(b"x") for each in partitions] == [0, 0, 0]
            positions = tools.saved_indexes(client, "reader")
            assert await positions.get("orders") == 0
            async with stream.consumer(positions, page_messages=8) as consumer:
                read = [message.data async for message in consumer.messages(stop_at_end=True)]
            assert read == [b"%d" % number for number in range(30)]
            assert await positions.get("orders") == 30

    with running(service, WIRES[era]) as address:
        run_in(shell, scenario, address)
    assert len(service.streams[service.addresses[b"orders", 0]]) == 30


def test_what_it_cannot_do_is_said_at_once(shell: ShellName) -> None:
    """Without waiting for any time-out: there is none in this test, and the index service says nothing."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect(service="stream", answer_timeout_s=None) as client:
            stream = await client.create("orders")
            await stream.push(b"x")
            cases: dict[str, Callable[[], Awaitable[Any]]] = {
                "finding and listing streams": lambda: client.find_stream("orders"),
                "where a stream begins and ends": lambda: stream.info(),
                "pulling from a time or the end": lambda: stream.pull_page(FromEnd(1)),
                "pushing with a key": lambda: stream.push(b"x", key=b"k"),
                "with headers": lambda: stream.push(b"x", headers=[Header("a", b"b")]),
                "truncating": lambda: stream.truncate(1),
                "deleting": lambda: stream.delete(),
            }
            for words, asking in cases.items():
                with pytest.raises(NotSupported, match=words) as caught:
                    await asking()
                assert (caught.value.retriable, caught.value.fault) == (False, "caller")
            assert len(await stream.pull()) == 1

    with running(RealService(), HEAD) as address:
        run_in(shell, scenario, address)


def test_the_silent_index_service_is_not_waited_for(shell: ShellName) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(service="stream", answer_timeout_s=None) as client:
            stream = await client.create_partitioned("orders", 2)
            member = tools.lease_member(client, "group", "me")

            async def share() -> None:
                async with stream.shared_consumer(member) as consumer:
                    async for _ in consumer.messages():
                        pytest.fail("there is nothing to read")

            with pytest.raises(NotSupported, match="sharing partitions"):
                await share()

    with running(RealService(), LEGACY if shell == "asyncio" else HEAD) as address:
        framing = "legacy" if shell == "asyncio" else "head"

        async def framed(tools: Tools) -> None:
            tools.defaults["framing"] = framing
            await scenario(tools)

        run_in(shell, framed, address)


@pytest.mark.parametrize(
    ("service", "index_service"),
    [
        ("stream_service", "stream_index_service"),
        ("stream", "stream_index"),
        ("stream_kafka", "stream_kafka_index"),
        ("my_stream_kafka", "my_stream_kafka_index"),
    ],
)
def test_the_index_service_is_called_as_its_stream_service(service: str, index_service: str) -> None:
    assert index_service_of(service) == index_service


@pytest.mark.slow
@pytest.mark.parametrize("era", ["head", pytest.param("legacy", marks=pytest.mark.soak)])
def test_the_commands(tmp_path: Path, era: str) -> None:
    """Also: each of our own requests is an error line in the log of the service. Only the first command makes some."""
    command, service = Command(tmp_path), RealService()
    with running(service, WIRES[era]) as address:
        done = command("context", "add", "hub", address, "--service", "stream", "--framing", "auto")
        assert done.code == 0, done
        assert command("stream", "create", "x").code == 0
        error_lines = sum(name.startswith(b"node/") for name in service.asked)
        assert error_lines <= 2
        done = command("stream", "create", "p3", "--partitions", "3")
        assert done.text == "p3 has the 3 partitions asked for; this peer does not tell whether it has more\n"
        assert command("push", "x", "--data", "one").code == 0
        assert command("push", "x", "--data", "two").code == 0
        assert command("pull", "x").out == b"one\ntwo\n"
        assert command("consume", "x", "--client", "me").out == b"one\ntwo\n"
        assert command("consume", "x", "--client", "me").out == b""
        assert sum(name.startswith(b"node/") for name in service.asked) == error_lines
        for arguments in (("stream", "list"), ("index", "list"), ("index", "set", "x", "0", "--client", "me")):
            done = command(*arguments)
            assert (done.code, done.out) == (1, b""), done
            assert "is no stream node's: it does not know node/" in done.error
        # Without the service's name, the default is a worker that nobody is.
        done = command("pull", "x", "--node", address, "--framing", era)
        assert done.code == 3, done
        assert "--service stream" in done.error
    assert service.indexes == {(b"me", b"x"): 2}
    # A stream node that takes the place of the service is used with all that it has.
    with NodeProcess(tmp_path / "data", listen=address):
        assert command("stream", "list").out == b"no streams\n"
        assert command("push", "x", "--data", "three", "--key", "k", "--context", "hub").code == 0
        assert command("pull", "x", "--keys").out == b"k\tthree\n"


class BreakingService(RealService):
    """Ends the connection after the first push, and answers no protocol of ours afterwards."""

    def __call__(self, onward_route: Route, payload: bytes) -> Iterator[Answer]:
        is_broken = b"stream_push" in self.asked
        for answer in super().__call__(onward_route, payload):
            if not (is_broken and self.asked[-1].startswith(b"node/")):
                yield answer
        if not is_broken and b"stream_push" in self.asked:
            raise trio.BrokenResourceError


def test_a_command_that_has_pushed_does_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if it does not know at its end which protocols the service has, because the connection is a new one."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    service = BreakingService()

    async def run(client: StreamClient) -> None:
        stream = await client.create("orders")
        await stream.push(b"one")
        with trio.fail_after(PATIENCE_S):
            while client.statistics().connections < 2:
                await trio.sleep(0.01)
        async with connect(other, service="stream") as second:
            await second.find_stream("orders")

    given = GIVEN.set(RequestOptions(services=ServiceOptions(service="stream")))
    try:
        with (
            running(service, HEAD) as address,
            running(RealService(), HEAD) as other,
            pytest.raises(NotSupported, match="finding and listing streams"),
        ):
            with_client(run, NodeOptions(address))
    finally:
        GIVEN.reset(given)
    assert list(service.streams.values()) == [[b"one"]]


async def test_a_push_to_a_node_in_the_place_of_a_real_service_goes_to_all_partitions(tmp_path: Path) -> None:
    """An earlier command has noted that a real service is there, and the first push shows that this is over."""
    async with served(tmp_path) as server, connect(server.address) as client:
        await client.create_partitioned("orders", 3)
        async with connect(server.address, plain=True) as doubting:
            assert (await open_target(doubting, "orders")).count == 3


def test_a_client_that_knows_a_real_service_asks_for_nothing_of_ours(shell: ShellName) -> None:
    service = RealService()

    async def scenario(tools: Tools) -> None:
        async with tools.connect(service="stream", answer_timeout_s=None, contact_timeout_s=30.0, plain=True) as client:
            partitions = await client.create_partitioned("orders", 2)
            assert [await each.push(b"x") for each in partitions.partitions] == [0, 0]
            async with partitions.consumer("me") as consumer:
                assert len([message async for message in consumer.messages(stop_at_end=True)]) == 2
            with pytest.raises(NotSupported, match="finding and listing streams"):
                await client.find_stream("orders")

    with running(service, HEAD) as address:
        run_in(shell, scenario, address)
    assert [name for name in service.asked if name.startswith(b"node/")] == []


def test_a_stream_node_is_known_by_the_address_of_a_stream(shell: ShellName, tmp_path: Path) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect(service="stream", plain=True) as client:
            stream = await client.create("orders")
            assert await stream.push(b"x", key=b"k") == 0
            assert (await stream.info()).next_index == 1

    with NodeProcess(tmp_path / "data") as node:
        run_in(shell, scenario, node.address)
