"""Goal: members of a cluster have names and addresses with which the others reach them, or do not start.

Method: the real command beside a real PostgreSQL server; the addresses are read from the database by psql.
"""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_client import blocking
from stream_node.fleet.supervisor import listen_at
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import NAME_CHARS_MAX, check_cluster
from stream_node.node.databases import check_url
from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.support.postgres import PostgresServer

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
HOST = "127.0.0.1"
STREAMS = 8


def free_ports(count: int) -> int:
    """The first of several ports in a row that are free."""
    while True:
        with ExitStack() as stack:
            try:
                first = stack.enter_context(listen_at(HOST, 0)).getsockname()[1]
                for port in range(first + 1, first + count):
                    stack.enter_context(listen_at(HOST, port))
            except (OSError, OverflowError):
                continue
            return int(first)


def addresses(server: PostgresServer, database: str) -> list[str]:
    query = "SELECT convert_from(name, 'UTF8') || ' ' || convert_from(address, 'UTF8') FROM cluster_members ORDER BY 1"
    return server.ask(query, database).splitlines()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "0:0"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_member_at_every_address_must_say_its_own(tmp_path: Path, listen: str, workers: str) -> None:
    arguments = ("--database", NOWHERE, "--cluster", "m1", "--workers", workers, "--insecure")
    told = r"ended with 2: .*cluster_address: .*set cluster_address to the HOST:PORT"
    node = NodeProcess(tmp_path / "data", listen=listen, arguments=arguments)
    with pytest.raises(NodeNotStarted, match=told), node:
        pass


@pytest.mark.parametrize("address", ["0.0.0.0:4000", "[::]:4000", "10.0.0.1:0", "no address"])
def test_an_address_that_reaches_nobody_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^cluster_address: "):
        check_cluster(Config(database=NOWHERE, cluster="m1", cluster_address=address))
    check_cluster(Config(database=NOWHERE, cluster="m1", cluster_address="m1.example.org", listen="0.0.0.0:4000"))


@pytest.mark.parametrize("name", ["", "a b", "a\n", "a\0", "ä", "n" * 9_000, "n" * (NAME_CHARS_MAX + 1), "../n1"])
def test_a_name_that_cannot_be_a_members_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^cluster: the name of this node .* 1 to 64 letters, digits"):
        check_cluster(Config(database=NOWHERE, cluster=name))
    for good in ("n1", "n" * NAME_CHARS_MAX, "a.b-c_D9", "n" * NAME_CHARS_MAX + "-w63"):
        check_cluster(Config(database=NOWHERE, cluster=good))


def workers(url: str, folder: Path, *more: str, listen: str, address: str | None = None) -> NodeProcess:
    environment = {} if address is None else {"STREAM_NODE_CLUSTER_ADDRESS": address}
    arguments = ("--database", url, "--workers", "2", *more)
    return NodeProcess(folder, listen=listen, arguments=arguments, environment=environment)


@pytest.mark.parametrize("given", [None, pytest.param(0, marks=pytest.mark.soak), 1])
def test_workers_of_a_cluster_have_the_ports_behind_that_of_the_node(
    server: PostgresServer, database: str, tmp_path: Path, given: int | None
) -> None:
    """given: the port of `cluster_address`, counted from that of `listen`; None: there is no such setting."""
    port = free_ports(4)
    address = None if given is None else f"localhost:{port + given}"
    node = workers(
        server.url_of(database), tmp_path / "data", "--cluster", "m1", listen=f"{HOST}:{port}", address=address
    )
    with node:
        host, first = (HOST, port + 1) if given is None else ("localhost", port + given + 1)
        assert addresses(server, database) == [f"m1-w00 {host}:{first}", f"m1-w01 {host}:{first + 1}"]
        with blocking.connect(node.address) as client:
            for number in range(STREAMS):
                assert client.create(f"s{number}").push(b"x") == 0
        assert node.stop() == 0


def test_workers_without_a_cluster_stay_on_this_machine(server: PostgresServer, database: str, tmp_path: Path) -> None:
    node = workers(server.url_of(database), tmp_path / "data", "--insecure", listen="0.0.0.0:0")
    with node:
        found = addresses(server, database)
        assert [each.rpartition(":")[0] for each in found] == ["w00 127.0.0.1", "w01 127.0.0.1"]
        assert node.stop() == 0


@pytest.mark.parametrize("address", ["127.0.0.1:3999", "127.0.0.1:65534"])
def test_ports_that_workers_cannot_have_are_refused(tmp_path: Path, address: str) -> None:
    node = workers(NOWHERE, tmp_path / "data", "--cluster", "m1", listen="127.0.0.1:4000", address=address)
    with (
        pytest.raises(NodeNotStarted, match=r"ended with 2: .*cluster_address: the 2 workers listen at the ports"),
        node,
    ):
        pass


def test_a_url_of_a_database_that_cannot_be_read_is_a_mistake_in_a_setting() -> None:
    """Claim: it is told in one sentence, which shows no password of the URL."""
    for url in ("postgresql://someone:secret@[::1/streams", "postgresql://someone:secret@\uff0f/streams"):
        with pytest.raises(
            ConfigError, match=r"^database: its host cannot be read; write postgresql://USER@HOST"
        ) as told:
            check_url(url)
        assert "secret" not in "".join(traceback.format_exception(told.value))
