"""Goal: an address of the gRPC door may serve some services only, and says so to whoever asks.

Method: a whole node with an address for publishers and one for readers; the client is grpcio, with bytes as messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from block_node.grpc.limits import SERVICES, read_services
from block_node.grpc.messages import HEALTH, REFLECTION, read_message, write_message
from ockam.actors.address import split_host_port
from stream_node.care.doctor_access import check_addresses, check_listen
from stream_node.cli.node.serve import report_listening
from stream_node.fleet.worker_place import WorkerPlace, own_settings
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.identity.access import check_exposure
from tests.block_node.grpc.calls.block_door import DETAIL, GET, PUBLISH, STATUS, SUBSCRIBE, GrpcPublisher
from tests.block_node.grpc.http2.raw_client import pbj_headers, raw_client
from tests.block_node.publish.samples import chain_of
from tests.stream_node.doors.grpc.test_grpc_door import grpc_node

grpc = pytest.importorskip("grpc", reason="grpcio comes with the extra spark-connect")

API = "org.hiero.block.api"
EVERYWHERE = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
SERVING, NOT_FOUND, OK, UNIMPLEMENTED = b"\x08\x01", "NOT_FOUND", "OK", "UNIMPLEMENTED"


class Asking:
    """A channel of grpcio to one address. Called in a thread."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def ask(self, path: str, message: bytes = b"") -> tuple[str, bytes]:
        """The name of the status, and the first message of the answer."""
        answers = self.channel.stream_stream(path)(iter([message]), timeout=20)
        try:
            return OK, next(iter(answers), b"")
        except grpc.RpcError as error:
            return error.code().name, b""
        finally:
            answers.cancel()

    def health_of(self, service: str) -> tuple[str, bytes]:
        message = write_message("HealthCheckRequest", {"service": service}, HEALTH)
        return self.ask("/grpc.health.v1.Health/Check", message)

    def services(self) -> set[str]:
        message = write_message("ServerReflectionRequest", {"list_services": ""}, REFLECTION)
        _, answer = self.ask("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", message)
        found = read_message("ServerReflectionResponse", answer, REFLECTION)["list_services_response"]["service"]
        return {each["name"] for each in found}


@contextmanager
def asking(address: str) -> Iterator[Asking]:
    with grpc.insecure_channel(address.partition("/")[0]) as channel:
        yield Asking(channel)


def look_at_publishers(address: str) -> None:
    with asking(address) as client:
        for path in (SUBSCRIBE, GET, STATUS, DETAIL):
            assert client.ask(path)[0] == UNIMPLEMENTED
        assert client.services() == {f"{API}.BlockStreamPublishService", *EVERYWHERE}
        assert client.health_of(f"{API}.BlockStreamPublishService") == (OK, SERVING)
        assert client.health_of(f"{API}.BlockNodeService") == (NOT_FOUND, b"")
        assert client.health_of("") == (OK, SERVING)


def look_at_readers(address: str) -> None:
    with asking(address) as client:
        assert client.ask(PUBLISH)[0] == UNIMPLEMENTED
        assert client.ask(GET)[0] == UNIMPLEMENTED
        assert client.ask(STATUS)[0] == OK
        assert client.ask(DETAIL)[0] == OK
        served = {f"{API}.BlockStreamSubscribeService", f"{API}.BlockNodeService"}
        assert client.services() == served | EVERYWHERE
        assert client.health_of(f"{API}.BlockStreamPublishService") == (NOT_FOUND, b"")
        assert all(client.health_of(each) == (OK, SERVING) for each in served)


async def test_an_address_serves_what_its_setting_names_and_says_so(tmp_path: Path) -> None:
    addresses = ("127.0.0.1:0/publish", "127.0.0.1:0/subscribe+status", "127.0.0.1:0")
    async with grpc_node(tmp_path, grpc=addresses) as (running, _):
        publishing, reading, whole = running.server.grpc
        assert [each.partition("/")[2] for each in (publishing, reading, whole)] == ["publish", "subscribe+status", ""]
        await trio.to_thread.run_sync(look_at_publishers, publishing)
        await trio.to_thread.run_sync(look_at_readers, reading)
        with asking(whole) as client:
            everything = {f"{API}.{each}" for each in SERVICES.values()} | EVERYWHERE
            assert await trio.to_thread.run_sync(client.services) == everything
        # What was published at one address is read at another one.
        async with raw_client(split_host_port(publishing.partition("/")[0])[1]) as client_of_pbj:
            publisher = GrpcPublisher(client_of_pbj, await client_of_pbj.open(pbj_headers(PUBLISH)))
            await publisher.block(chain_of(1)[0])
            await publisher.wait_for("acknowledgement", 0)
        with asking(reading) as client:
            status = await trio.to_thread.run_sync(client.ask, STATUS)
            assert read_message("ServerStatusResponse", status[1])["next_expected_block"] == 1


def test_a_service_that_does_not_exist_is_refused_with_the_names_of_those_that_do(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    for wrong in ("publisher", "", "publish,status", "publish+"):
        file.write_text(f'grpc = ["127.0.0.1:0/{wrong}"]\nblock_node = true\n')
        with pytest.raises(ConfigError, match=r"grpc.* is no service.*publish, subscribe, access, status"):
            load_config({}, file=file, environment={})
    file.write_text('grpc = ["[::1]:40840/publish", "127.0.0.1:0"]\nblock_node = true\n')
    config = load_config({}, file=file, environment={})
    assert config.grpc_addresses == ("[::1]:40840", "127.0.0.1:0")
    assert [list(read_services(each)[1]) for each in config.grpc] == [
        ["BlockStreamPublishService"],
        list(SERVICES.values()),
    ]


def test_all_that_looks_at_the_addresses_knows_those_of_single_services(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The protection at the start, the doctor, the line at the start, and the ports of worker processes."""
    config = Config(data_dir=str(tmp_path), block_node=True, grpc=("0.0.0.0:40840/publish",))
    with pytest.raises(ConfigError, match=r"grpc: 0\.0\.0\.0:40840 is reached"):
        check_exposure(config)
    assert check_listen(config).status == "wrong"
    free = Config(data_dir=str(tmp_path), block_node=True, listen="127.0.0.1:0", grpc=("127.0.0.1:0/publish",))
    assert check_addresses(free, is_running=False).status == "ok"
    assert check_listen(free).values["grpc"] == "127.0.0.1:0/publish"
    report_listening(free, ["127.0.0.1:1"], [], True, ["127.0.0.1:5/publish"])
    assert json.loads(capsys.readouterr().out)["grpc"] == ["127.0.0.1:5/publish"]
    place = WorkerPlace(number=3, addresses=["a"] * 4, public=[], private=0, supervisor=0, report=0, use=0, secret="s")
    assert own_settings(config, place).grpc == ("0.0.0.0:40843/publish",)
