"""Goal: Spark's source and sink and the exporter work whole over mutual TLS, with a node's rules that give their
certificate no more than it needs, and say what is wrong with it.

Method: the installed command as a node that demands certificates, a real Spark session, and real files of keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow as pa
import pyarrow.dataset as dataset

from spark_export import register
from spark_export.errors import OptionError, SourceError, SourceTlsFailed
from spark_export.exporter.job import ExportSettings
from spark_export.exporter.node_side import Selection
from spark_export.exporter.run import Exporter
from spark_export.source.node import asked, list_partitions
from spark_export.source.options import read_options, write_options
from spark_export.source.plan import ReadRange
from spark_export.source.range_reader import RangeReader
from stream_client import AccessDenied, Tls, blocking
from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_node.node.process import NodeProcess
from tests.support.certificates import fingerprint
from tests.tls.keys import Keys, settings

pytestmark = pytest.mark.spark

COUNT = 20_000
RULES = """
[[rule]]
name = "the operator"
who = ["certificate:operator"]
may = ["read", "write", "create"]
on = [""]

[[rule]]
name = "the pipeline reads orders"
who = ["certificate:alice"]
may = ["read"]
on = ["orders"]

[[rule]]
name = "the pipeline keeps its position"
who = ["certificate:alice"]
may = ["index"]
on = ["export-"]

[[rule]]
name = "the sink writes a copy"
who = ["certificate:alice"]
may = ["read", "write"]
on = ["copied"]
"""
"""All that the pipeline needs, and what the test itself does."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def tls_node(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that demands certificates, with one stream."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "revoked.txt").write_text(fingerprint(keys.authority.issue("mallory")[0]))
    (folder / "rules.toml").write_text(RULES)
    given = settings(keys, tls_revoked=str(folder / "revoked.txt"), access_rules=str(folder / "rules.toml"))
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in given.items()}
    with NodeProcess(folder / "data", environment=variables) as node:
        with (
            blocking.connect(node.address, tls=keys.tls(keys.authority.issue("operator"))) as client,
            client.create("orders").publisher() as publisher,
        ):
            client.create("copied")
            for number in range(COUNT):
                publisher.push(b"%0200d" % number)
        yield node
        assert node.stop() == 0


def tls_options(keys: Keys) -> dict[str, str]:
    return {"tlsCa": keys.ca, "tlsCert": keys.alice[0], "tlsKey": keys.alice[1]}


def ask(endpoint: str, **tls: str) -> None:
    options = read_options({"subscribe": "orders", "endpoint": endpoint, "requestTimeoutMs": "10000", **tls})
    asked(options, lambda client: list_partitions(client, "orders"))


def test_a_range_is_read_in_bulk_over_mutual_tls(keys: Keys, tls_node: NodeProcess) -> None:
    """Answers of several megabytes, in the records of TLS."""
    options = read_options({"endpoint": tls_node.address, "subscribe": "orders", **tls_options(keys)})
    reader = RangeReader(ReadRange("orders", 0, 0, COUNT), options)
    table = pa.Table.from_batches(list(reader.batches()))
    assert reader.bulk_refusal is None
    assert table["index"].to_pylist() == list(range(COUNT))
    assert table["data"].to_pylist() == [b"%0200d" % number for number in range(COUNT)]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("none", "client certificate"),
        ("stranger", "authorit"),
        ("expired", "expired"),
        ("revoked", "revoked"),
        ("strange node", "authorit"),
        ("wrong name", "name"),
    ],
)
def test_each_fault_says_which_option_to_set(keys: Keys, tls_node: NodeProcess, fault: str, said: str) -> None:
    who = {
        "stranger": keys.strangers.issue("alice"),
        "expired": keys.authority.issue("expired", ends_s=-10),
        "revoked": (str(keys.folder / "authority-mallory.pem"), str(keys.folder / "authority-mallory.key")),
    }.get(fault, keys.alice)
    ca = keys.strangers.ca if fault == "strange node" else keys.ca
    name = "other.example" if fault == "wrong name" else None
    given = {"tlsCa": ca} | ({} if fault == "none" else dict(zip(("tlsCert", "tlsKey"), who, strict=True)))
    with pytest.raises(SourceTlsFailed, match=f"{said}.*here by the options tlsCa, tlsCert, tlsKey, tlsServerName"):
        ask(tls_node.address, **given | ({"tlsServerName": name} if name else {}))


def test_one_side_without_tls_is_told(keys: Keys, tls_node: NodeProcess, node: NodeProcess) -> None:
    with pytest.raises(SourceTlsFailed, match=r"speaks TLS, and this client does not.*the options tlsCa"):
        ask(tls_node.address)
    with pytest.raises(SourceTlsFailed, match=r"connect without TLS.*the options tlsCa"):
        ask(node.address, tlsCa=keys.ca)


def test_the_options_are_checked_together(keys: Keys) -> None:
    for parse in (read_options, write_options):
        given = {"subscribe": "orders"} if parse is read_options else {"stream": "orders"}
        assert parse(given).tls is None
        assert parse({**given, "tlsCa": "system"}).tls == Tls()
        with pytest.raises(OptionError, match="have no effect without tlsCa"):
            parse({**given, "tlsKey": "a.key"})
    with pytest.raises(OptionError, match=r"none\.pem"):
        ask("127.0.0.1:1", tlsCa="none.pem")


def test_spark_reads_and_writes_over_mutual_tls(keys: Keys, tls_node: NodeProcess, spark: Any) -> None:
    register(spark)
    given = {"endpoint": tls_node.address, **tls_options(keys)}
    frame = spark.read.format("stream_node").options(subscribe="orders", **given).load()
    assert frame.count() == COUNT
    copy = frame.where("offset < 100").select("value")
    copy.write.format("stream_node").options(stream="copied", **given).mode("append").save()
    with blocking.connect(tls_node.address, tls=keys.tls()) as client:
        found = client.find_stream("copied")
        assert found is not None
        copied = found.partitions[0].pull(0, 200)
    assert sorted(message.data for message in copied) == [b"%0200d" % number for number in range(100)]


def test_the_exporter_runs_whole_over_mutual_tls(keys: Keys, tls_node: NodeProcess, tmp_path: Path) -> None:
    """List, read, and save positions: the second run finds nothing new."""
    chosen = ExportSettings(tmp_path / "lake", tls_node.address, selection=Selection(("orders",)), tls=keys.tls())

    def run() -> int:
        with Exporter(chosen) as exporter:
            return exporter.run().rows

    assert run() == COUNT
    found = dataset.dataset(tmp_path / "lake" / "messages", partitioning="hive").to_table()
    assert sorted(found["index"].to_pylist()) == list(range(COUNT))
    assert run() == 0


def test_a_certificate_without_rules_gets_nothing(keys: Keys, tls_node: NodeProcess, tmp_path: Path) -> None:
    """The authority has signed it, so it connects; each way of the pipeline says which right is missing."""
    bob = keys.authority.issue("bob")
    options = {"endpoint": tls_node.address, "tlsCa": keys.ca, "tlsCert": bob[0], "tlsKey": bob[1]}
    with pytest.raises(SourceError, match=r"access denied: .* for certificate:bob: no rule allows it"):
        ask(**options)
    reader = RangeReader(ReadRange("orders", 0, 0, 1), read_options({"subscribe": "orders", **options}))
    with pytest.raises(SourceError, match="certificate:bob"):
        list(reader.batches())
    chosen = ExportSettings(tmp_path / "lake", tls_node.address, selection=Selection(("orders",)), tls=keys.tls(bob))

    with pytest.raises(AccessDenied, match="certificate:bob"), Exporter(chosen) as exporter:
        exporter.run()
    audit = [json.loads(line) for line in (tls_node.data_dir / "audit.jsonl").read_text().splitlines()]
    refused = [line for line in audit if line["event"] == "refused"]
    assert {line["identity"] for line in refused} == {"certificate:bob"}
