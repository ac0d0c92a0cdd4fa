"""Goal: Spark's source and sink and the exporter prove their name by a token, which appears in no plan.

Method: the installed command as a node whose rules allow everything to a token and nothing else, a real Spark session,
and the plans and options that Spark shows and pickles.
"""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa

from ockam.identity.rules.tokens import create_token
from ockam.transport.wire_head import HEAD
from spark_export import register
from spark_export.errors import NodeRefused, OptionError, SourceUnreachable, TokenRefused
from spark_export.exporter.job import ExportSettings
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.run import Exporter
from spark_export.source.node import asked, list_partitions
from spark_export.source.options import read_options, write_options
from spark_export.source.plan import ReadRange, StreamEnds
from spark_export.source.range_reader import RangeReader
from stream_client import Token, blocking
from stream_node.node.process import NodeProcess
from tests.ockam.identity.rules.guarded_node import write_rules
from tests.support.strangers import answering, redis
from tests.tokens.token_node import UNKNOWN, everything_to_tokens, own_address

pytestmark = pytest.mark.spark

COUNT = 5_000


class Place:
    """A node, and a file with its token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "spark.token"
        self.text, _ = create_token(folder / "data" / "tokens.json", "spark", int(time.time()))
        self.file.write_text(self.text + "\n")
        write_rules(folder / "access.toml", [everything_to_tokens()])
        variables = {"STREAM_NODE_ACCESS_RULES": str(folder / "access.toml")}
        self.node = NodeProcess(folder / "data", environment=variables)

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": self.node.address, "token": f"file:{self.file}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("node"))
    with made.node:
        with (
            blocking.connect(made.node.address, token=made.text) as client,
            client.create("orders").publisher() as publisher,
        ):
            for number in range(COUNT):
                publisher.push(b"%0200d" % number)
        yield made
        assert made.node.stop() == 0


def ask(endpoint: str, token: str, timeout_ms: str = "10000") -> list[StreamEnds]:
    options = read_options(
        {"subscribe": "orders", "endpoint": endpoint, "token": token, "requestTimeoutMs": timeout_ms}
    )
    return asked(options, lambda client: list_partitions(client, "orders"))


def test_a_range_is_read_with_a_token_and_not_without(place: Place) -> None:
    options = read_options({"subscribe": "orders", **place.options})
    table = pa.Table.from_batches(list(RangeReader(ReadRange("orders", 0, 0, COUNT), options).batches()))
    assert table["index"].to_pylist() == list(range(COUNT))
    anonymous = read_options({"subscribe": "orders", "endpoint": place.node.address})
    with pytest.raises(NodeRefused, match="for anonymous"):
        asked(anonymous, lambda client: client.create("other"))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (UNKNOWN, TokenRefused, "the token is not accepted .*this node does not know.*the options token"),
        ("hunter2", OptionError, "token .*is no token: a token is"),
        (None, OptionError, "No such file"),
    ],
)
def test_each_fault_is_said_without_the_token(
    place: Place, tmp_path: Path, given: str | None, error: type[Exception], said: str
) -> None:
    if given is not None:
        (tmp_path / "t").write_text(given)
    with pytest.raises(error, match=said) as caught:
        ask(place.node.address, f"file:{tmp_path / 't'}")
    assert given is None or given not in str(caught.value)


def test_a_variable_is_read_by_each_process(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="there is no token: the environment variable MY_TOKEN is not set"):
        ask(place.node.address, "env:MY_TOKEN")
    monkeypatch.setenv("MY_TOKEN", place.text)
    assert ask(place.node.address, "env:MY_TOKEN")


def test_the_token_itself_is_refused_as_an_option(place: Place) -> None:
    """Neither the error nor the checked options have it, also pickled as Spark sends them."""
    for parse, given in ((read_options, {"subscribe": "orders"}), (write_options, {"stream": "orders"})):
        assert parse(given).token is None
        with pytest.raises(OptionError, match="env:NAME or file:PATH") as caught:
            parse({**given, "token": place.text})
        assert place.text[6:] not in str(caught.value)
        options = parse({**given, **place.options})
        assert options.token == Token(file=place.file)
        assert place.text[6:].encode() not in pickle.dumps(options)
    with pytest.raises(OptionError, match="Spark would show the token"):
        NodeSide("127.0.0.1:4000", None, Token(place.text))


def test_a_token_stays_on_this_machine_without_tls(place: Place) -> None:
    """A server at the real address of the machine that greets as a node sees one byte, and so does one that is no
    node."""
    seen: list[bytes] = []

    def greet() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(HEAD.hello)
            while data := connection.recv(100):
                seen.append(data)

    with socket.create_server((own_address(), 0)) as server:
        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(TokenRefused, match=r"nothing was sent.*the options token and tlsCa"):
            ask("{}:{}".format(*server.getsockname()), f"file:{place.file}")
        greeting.join()
    assert b"".join(seen) == HEAD.hello
    with answering(redis) as address, pytest.raises(SourceUnreachable):
        ask(address, f"file:{place.file}", "500")


def test_spark_reads_and_writes_with_a_token(place: Place, spark: Any) -> None:
    """The plans that Spark shows have the place of the token and not the token."""
    register(spark)
    frame = spark.read.format("stream_node").options(subscribe="orders", **place.options).load()
    assert frame.count() == COUNT
    plan = frame._jdf.queryExecution().toString()
    assert place.text[6:] not in plan
    copy = frame.where("offset < 100").select("value")
    copy.write.format("stream_node").options(stream="copied", **place.options).mode("append").save()
    with blocking.connect(place.node.address, token=place.text) as client:
        assert len(client.create("copied").pull(0, 200)) == 100


def test_the_exporter_runs_whole_with_a_token(place: Place, tmp_path: Path) -> None:
    """List, read, and save positions: the second run finds nothing new. Nothing in the folder has the token."""
    chosen = ExportSettings(
        tmp_path / "lake",
        place.node.address,
        selection=Selection(("orders",)),
        token=Token(file=place.file),
    )

    for rows in (COUNT, 0):
        with Exporter(chosen) as exporter:
            assert exporter.run().rows == rows
    written = b"".join(each.read_bytes() for each in (tmp_path / "lake").rglob("*") if each.is_file())
    assert place.text[6:].encode() not in written
