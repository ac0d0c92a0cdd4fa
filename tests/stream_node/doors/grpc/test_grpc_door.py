"""Goal: the gRPC door of a whole node: its settings, TLS, identities, rules, and how it stops.

Method: real nodes, real sockets. Publishers speak as PBJ does; behind TLS the client is grpcio, and bare h2 where it
must say `:scheme http`.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from block_node.blocks.files import read_items
from block_node.blocks.generator import BlockShape
from block_node.grpc.messages import NO_BLOCK, read_message, write_message
from ockam.actors.address import split_host_port
from ockam.identity.authenticator import Authenticator
from ockam.identity.rules.rights import Right
from ockam.identity.rules.rules import Rule
from ockam.identity.rules.tokens import create_token
from stream_node.care.doctor_access import check_tls
from stream_node.cli.node.serve import report_listening
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.identity.tls_settings import find_certificate_sha384
from stream_node.node.parts import GrpcDoorStatistics
from tests.block_node.grpc.calls.block_door import PUBLISH, STATUS, SUBSCRIBE, GrpcPublisher
from tests.block_node.grpc.http2.raw_client import RawClient, framed, pbj_headers, raw_client
from tests.block_node.publish.samples import chain_of
from tests.ockam.identity.rules.guarded_node import may, write_rules
from tests.support.certificates import Authority
from tests.support.served import Served, served, wait_until

OK, PERMISSION_DENIED, UNAVAILABLE, UNAUTHENTICATED = 0, 7, 14, 16
LOCAL = ("127.0.0.1:0",)
BLOCKS: dict[str, Any] = {"block_node": True, "grpc": LOCAL, "block_accept_unchecked_proofs": True}


def is_ready(running: Served) -> bool:
    blocks = running.statistics().services.blocks
    return blocks is not None and blocks.node.publish is not None


@asynccontextmanager
async def grpc_node(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Served, int]]:
    async with served(tmp_path / "data", **{**BLOCKS, **settings}) as running:
        # A node that is still starting says UNAVAILABLE to those who publish and read.
        await wait_until(lambda: is_ready(running))
        yield running, split_host_port(running.server.grpc[0].partition("/")[0])[1]


def rules(folder: Path, *given: Rule) -> dict[str, str]:
    write_rules(folder / "access.toml", given)
    return {"access_rules": str(folder / "access.toml")}


def with_token(path: str, token: str) -> list[tuple[str, str]]:
    return [*pbj_headers(path), ("authorization", f"Bearer {token}")]


async def status_of(client: RawClient, headers: list[tuple[str, str]]) -> int:
    return (await client.ask(headers, framed(b""))).status


async def test_a_publisher_a_subscriber_and_a_stop(tmp_path: Path) -> None:
    async with grpc_node(tmp_path) as (running, port), raw_client(port) as client:
        publisher = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))
        for block in chain_of(3):
            await publisher.block(block)
            await publisher.wait_for("acknowledgement", block.number)
        async with raw_client(port) as reader:
            follow = await reader.open(pbj_headers(SUBSCRIBE))
            asked = write_message("SubscribeStreamRequest", {"end_block_number": NO_BLOCK})
            await reader.send(follow, framed(asked), end=True)
            await reader.until(lambda: len(reader.answers[follow].messages()) >= 6)
            statistics = running.statistics().grpc
            assert statistics is not None
            assert (statistics.open, statistics.open_calls) == (2, 2)
            blocks = running.statistics().services.blocks
            assert blocks is not None
            assert blocks.readers.subscribe.sessions == 1
            running.server.stop()
            # Both are told why, read it, and then the connection ends.
            await publisher.expect_end(1, 2, 0)
            await reader.until_end(follow)
            last = read_message("SubscribeStreamResponse", reader.answers[follow].messages()[-1])
            assert last == {"status": 1}
            await reader.until_closed()
            assert [each.error_code for each in reader.goaways] == [0, 0]
            assert [each.last_stream_id for each in reader.goaways] == [2**31 - 1, follow]


async def test_services_may_be_registered_at_addresses_apart(tmp_path: Path) -> None:
    """As `streamingPort` and `servicePort` in the block-nodes.json of a consensus node. Each serves every service."""
    async with grpc_node(tmp_path, grpc=("127.0.0.1:0", "127.0.0.1:0")) as (running, streaming):
        service = split_host_port(running.server.grpc[1])[1]
        assert streaming != service
        async with raw_client(streaming) as publishing, raw_client(service) as asking:
            publisher = GrpcPublisher(publishing, await publishing.open(pbj_headers(PUBLISH)))
            await publisher.block(chain_of(1)[0])
            await publisher.wait_for("acknowledgement", 0)
            answer = await asking.ask(pbj_headers(STATUS), framed(b""))
            assert read_message("ServerStatusResponse", answer.messages()[0])["next_expected_block"] == 1


async def test_real_blocks_are_published(tmp_path: Path, shared_dir: Path) -> None:
    paths = sorted((shared_dir / "data" / "hiero" / "SCHNORR").glob("*.blk.gz"))
    async with grpc_node(tmp_path, grpc_compression=True) as (running, port), raw_client(port) as client:
        publisher = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))
        for number, path in enumerate(paths):
            items = list(read_items(path))
            for start in range(0, len(items), 500):
                await publisher.items(items[start : start + 500])
            await publisher.end_block(number)
        await publisher.wait_for("acknowledgement", len(paths) - 1)
        asked = write_message("SubscribeStreamRequest", {"end_block_number": len(paths) - 1})
        answer = await client.ask(pbj_headers(SUBSCRIBE), framed(asked))
        found = [
            item
            for message in answer.messages()
            for item in read_message("SubscribeStreamResponse", message).get("block_items", {}).get("block_items", [])
        ]
        assert found == [item for path in paths for item in read_items(path)]
        assert running.statistics().services.blocks is not None


async def test_a_node_without_its_blocks_has_no_door(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('grpc = ["127.0.0.1:0"]\nblock_node = false\n')
    with pytest.raises(ConfigError, match="block_node"):
        load_config({}, file=file, environment={})
    async with served(tmp_path / "data", block_node=True) as running:
        assert running.server.grpc == []
        assert running.statistics().grpc is None


async def test_a_door_that_others_reach_needs_tls_and_rules(tmp_path: Path) -> None:
    from stream_node.node.identity.access import check_exposure

    with pytest.raises(ConfigError, match=r"grpc: 0\.0\.0\.0:40840 is reached"):
        check_exposure(Config(data_dir=str(tmp_path), block_node=True, grpc=("0.0.0.0:40840",)))


async def test_the_rules_decide_about_each_method(tmp_path: Path) -> None:
    given = rules(tmp_path, may(Right.BLOCK_READ, "blocks"))
    async with grpc_node(tmp_path, **given) as (running, port), raw_client(port) as client:
        assert await status_of(client, pbj_headers(STATUS)) == OK
        refused = await client.ask(pbj_headers(PUBLISH), framed(b""))
        assert refused.status == PERMISSION_DENIED
        assert "block-publish" in refused.text
        # Health needs no right.
        assert await status_of(client, pbj_headers("/grpc.health.v1.Health/Check")) == OK
        access = running.statistics().access
        assert access is not None
        assert access.refused == {"block-publish": 1}


async def test_a_token_proves_who_calls_and_a_changed_rule_ends_the_call(tmp_path: Path) -> None:
    given = rules(tmp_path, may(Right.BLOCK_PUBLISH, "blocks", "token:node7"))
    (tmp_path / "data").mkdir()
    text = create_token(tmp_path / "data" / "tokens.json", "node7", int(time.time()))[0]
    async with grpc_node(tmp_path, **given) as (running, port), raw_client(port) as client:
        assert await status_of(client, pbj_headers(STATUS)) == PERMISSION_DENIED
        assert await status_of(client, with_token(STATUS, text)) == OK
        assert await status_of(client, with_token(STATUS, text[:-1] + "x")) == UNAUTHENTICATED
        assert await status_of(client, [*pbj_headers(STATUS), ("authorization", "Basic eDp5")]) == UNAUTHENTICATED
        publisher = GrpcPublisher(client, await client.open(with_token(PUBLISH, text)))
        await publisher.block(chain_of(1)[0])
        await publisher.wait_for("acknowledgement", 0)
        write_rules(tmp_path / "access.toml", [may(Right.BLOCK_READ, "blocks", "token:node7")])
        running.server.reload()
        answer = await client.until_end(publisher.stream_id)
        assert answer.status == PERMISSION_DENIED
        await wait_until(lambda: publishers(running) == 0)


async def test_a_call_that_is_gone_before_its_token_was_judged_leaves_no_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    text = create_token(tmp_path / "data" / "tokens.json", "node7", int(time.time()))[0]
    begun, gone, judged = trio.Event(), trio.Event(), trio.Event()
    judge = Authenticator.judge_text

    async def judge_late(self: Authenticator, *arguments: Any) -> Any:
        begun.set()
        await gone.wait()
        judged.set()
        return await judge(self, *arguments)

    async with grpc_node(tmp_path) as (running, port):
        monkeypatch.setattr(Authenticator, "judge_text", judge_late)
        async with raw_client(port) as client:
            await client.open(with_token(PUBLISH, text))
            await begun.wait()
        await wait_until(lambda: grpc_of(running).open == 0)
        gone.set()
        await judged.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert publishers(running) == 0


async def test_a_token_that_ends_ends_its_calls_and_their_connection_stays(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    tokens = tmp_path / "data" / "tokens.json"
    text = create_token(tokens, "node7", int(time.time()))[0]
    async with grpc_node(tmp_path) as (running, port), raw_client(port) as client:
        publisher = GrpcPublisher(client, await client.open(with_token(PUBLISH, text)))
        other = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))
        await publisher.block(chain_of(1)[0])
        await publisher.wait_for("acknowledgement", 0)
        tokens.unlink()
        answer = await client.until_end(publisher.stream_id)
        assert (answer.status, "revoked" in answer.text) == (UNAUTHENTICATED, True)
        await wait_until(lambda: publishers(running) == 1)
        # The neighbour on the connection, which is somebody else, notices nothing.
        await other.block(chain_of(2)[1])
        await other.wait_for("acknowledgement", 1)


async def test_a_changed_rule_ends_the_calls_of_anonymous_peers_with_a_word(tmp_path: Path) -> None:
    given = rules(tmp_path, may(Right.BLOCK_PUBLISH, "blocks"))
    async with grpc_node(tmp_path, **given) as (running, port), raw_client(port) as client:
        publisher = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))
        await publisher.block(chain_of(1)[0])
        await publisher.wait_for("acknowledgement", 0)
        write_rules(tmp_path / "access.toml", [may(Right.BLOCK_READ, "blocks")])
        running.server.reload()
        answer = await client.until_end(publisher.stream_id)
        assert (answer.status, "rules" in answer.text) == (PERMISSION_DENIED, True)
        assert await status_of(client, pbj_headers(STATUS)) == OK
        assert await status_of(client, pbj_headers(PUBLISH)) == PERMISSION_DENIED


async def test_the_rate_of_an_identity_holds_at_this_door_too(tmp_path: Path) -> None:
    limits = {"identity_limits_loopback": True, "identity_requests_per_second": 1}
    async with grpc_node(tmp_path, **limits) as (running, port), raw_client(port) as client:
        # All in one write, so that no machine is too slow for it.
        for _ in range(50):
            stream_id = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream_id, pbj_headers(STATUS))
            client.h2.send_data(stream_id, framed(b""), end_stream=True)
        await client.flush()
        await wait_until(lambda: running.statistics().limits.slowed.get("requests_per_second", 0) > 0)


async def test_an_identity_has_a_limit_of_connections_at_this_door_too(tmp_path: Path) -> None:
    limits = {"identity_limits_loopback": True, "identity_connections_max": 1}
    async with grpc_node(tmp_path, **limits) as (running, port):
        async with raw_client(port) as client:
            assert await status_of(client, pbj_headers(STATUS)) == OK
            async with raw_client(port) as second:
                await second.until_closed()
            assert grpc_of(running).closed["identity_connections_max"] == 1
        await wait_until(lambda: grpc_of(running).open == 0)
        async with raw_client(port) as third:
            assert await status_of(third, pbj_headers(STATUS)) == OK


async def test_who_watches_the_health_is_told_of_the_stop_and_does_not_delay_it(tmp_path: Path) -> None:
    reflection = pbj_headers("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    async with grpc_node(tmp_path, drain_timeout_s=3_600.0) as (running, port), raw_client(port) as client:
        watch = await client.open(pbj_headers("/grpc.health.v1.Health/Watch"))
        await client.send(watch, framed(b""))
        await client.until(lambda: bool(client.answers[watch].messages()))
        waiting = await client.open(reflection)
        await wait_until(lambda: grpc_of(running).open_calls == 2)
        running.server.stop()
        answer = await client.until_end(watch)
        assert answer.messages() == [b"\x08\x01", b"\x08\x02"]
        assert (answer.status, (await client.until_end(waiting)).status) == (UNAVAILABLE, UNAVAILABLE)
        await client.until_closed()


def grpc_of(running: Served) -> GrpcDoorStatistics:
    found = running.statistics().grpc
    assert found is not None
    return found


def publishers(running: Served) -> int:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    assert blocks.node.publish is not None
    return blocks.node.publish.publishers


def content(file: str) -> bytes:
    return Path(file).read_bytes()


def tls_settings(folder: Path, **more: Any) -> tuple[Authority, dict[str, Any]]:
    authority = Authority(folder)
    certificate, key = authority.issue("node", hosts=("localhost", "127.0.0.1"))
    return authority, {"tls_certificate": certificate, "tls_certificate_key": key, **more}


def test_the_fingerprint_of_the_certificate_is_that_of_its_der(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is `certificateSha384` in the block-nodes.json of a consensus node (hiero-consensus-node PR 27023). The line
    at the start and `doctor` print it."""
    authority, settings = tls_settings(tmp_path)
    certificate = x509.load_pem_x509_certificate(Path(settings["tls_certificate"]).read_bytes())
    # The authority's certificate follows, as in a chain.
    with Path(settings["tls_certificate"]).open("a") as file:
        file.write(Path(authority.ca).read_text())
    config = Config(data_dir=str(tmp_path), block_node=True, grpc=LOCAL, **settings)
    sha384 = certificate.fingerprint(hashes.SHA384()).hex()
    assert find_certificate_sha384(config) == sha384
    report_listening(config, ["127.0.0.1:4001"], [], True, ["127.0.0.1:40840"])
    told = json.loads(capsys.readouterr().out)
    assert (told["grpc"], told["certificate_sha384"]) == (["127.0.0.1:40840"], sha384)
    found = check_tls(config)
    assert found.values["certificate_sha384"] == sha384
    assert sha384 in found.text
    assert find_certificate_sha384(Config(data_dir=str(tmp_path))) is None
    assert find_certificate_sha384(Config(data_dir=str(tmp_path), tls_certificate=str(tmp_path / "none"))) is None


async def test_a_consensus_node_without_a_certificate_speaks_over_tls(tmp_path: Path) -> None:
    """It names h2 by ALPN, says `:scheme http` all the same, and presents no certificate (facts/grpc_peers.md §1.3)."""
    authority, settings = tls_settings(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2"])
    async with grpc_node(tmp_path, **settings) as (_, port):
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        async with trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True) as stream:
            await stream.do_handshake()
            assert stream.selected_alpn_protocol() == "h2"
            client = RawClient(stream)  # type: ignore[arg-type]
            client.h2.initiate_connection()
            await client.flush()
            publisher = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))
            for block in chain_of(2):
                await publisher.block(block)
            await publisher.wait_for("acknowledgement", 1)


async def test_stalled_handshakes_of_one_host_leave_room(tmp_path: Path) -> None:
    """Of eight connections, one host gets two, also if they never finish their TLS handshake: the oldest give way.
    Another host gets its connection."""
    authority, settings = tls_settings(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2"])
    async with grpc_node(tmp_path, grpc_connections_max=8, **settings) as (running, port), AsyncExitStack() as stack:
        for _ in range(12):
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        await wait_until(lambda: grpc_of(running).closed.get("gave_way") == 10)
        plain = await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.2")
        async with trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True) as stream:
            await stream.do_handshake()
            client = RawClient(stream)  # type: ignore[arg-type]
            client.h2.initiate_connection()
            await client.flush()
            assert await status_of(client, pbj_headers(STATUS)) == OK


async def test_grpcio_over_tls_with_a_certificate_is_who_it_says(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio comes with the extra spark-connect")
    authority, settings = tls_settings(tmp_path)
    settings |= {"tls_client_ca": authority.ca, "tls_client_required": False}
    settings |= rules(tmp_path, may(Right.BLOCK_READ, "blocks", "certificate:mirror"))
    certificate, key = authority.issue("mirror")

    known = {"private_key": content(key), "certificate_chain": content(certificate)}

    def ask(port: int, **files: bytes) -> Any:
        credentials = grpc.ssl_channel_credentials(content(authority.ca), **files)
        with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
            try:
                channel.unary_unary(STATUS)(b"", timeout=20)
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    async with grpc_node(tmp_path, **settings) as (_, port):
        run = trio.to_thread.run_sync
        assert await run(lambda: ask(port, **known)) is grpc.StatusCode.OK
        assert await run(lambda: ask(port)) is grpc.StatusCode.PERMISSION_DENIED


async def test_a_host_whose_messages_drip_stops_no_other_host(tmp_path: Path) -> None:
    """One host begins four messages of a quarter of all memory for messages, and ends none. Another one's message,
    which is larger than its window, comes to its end, and its block is acknowledged."""
    async with (
        grpc_node(tmp_path, grpc_unfinished_bytes_max=4_000_000) as (_, port),
        raw_client(port, "127.0.0.2") as dripping,
        raw_client(port, "127.0.0.3") as honest,
    ):
        message = framed(bytes(1_000_100))[:1_000_005]
        left = {await dripping.open(pbj_headers(PUBLISH)): message for _ in range(4)}
        with trio.move_on_after(20) as patience:
            # It sends all that it may, until it gets no more window.
            while not patience.cancelled_caught:
                for stream_id, rest in left.items():
                    room = min(dripping.h2.local_flow_control_window(stream_id), dripping.h2.max_outbound_frame_size)
                    if room and rest:
                        dripping.h2.send_data(stream_id, rest[:room])
                        left[stream_id] = rest[room:]
                        patience.deadline = trio.current_time() + 0.5
                await dripping.flush()
                if not any(rest and dripping.h2.local_flow_control_window(each) for each, rest in left.items()):
                    await dripping.receive()
        publisher = GrpcPublisher(honest, await honest.open(pbj_headers(PUBLISH)))
        (block,) = chain_of(1, BlockShape(item_count=20, item_bytes=25_000))
        with trio.fail_after(20):
            await publisher.block(block, set_size=len(block.items))
            await publisher.wait_for("acknowledgement", 0)
