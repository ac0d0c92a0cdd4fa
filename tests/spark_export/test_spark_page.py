"""Goal: docs/spark.md is true. Method: its examples are run in order, as doctests, with one node and one session; its
tables are compared with the code."""

from __future__ import annotations

import doctest
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from ockam.identity.rules.tokens import create_token
from spark_export.decode.options import DECODE_OPTIONS
from spark_export.session import WORKER_LATE
from spark_export.source.kafka_options import SINK, SOURCE, KafkaOption
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS
from stream_client import blocking
from stream_node.node.config import ENVIRONMENT_PREFIX
from stream_node.node.process import NodeProcess
from tests.ockam.identity.rules.guarded_node import write_rules
from tests.spark_export.decode.registry_server import RegistryServer, registry_server
from tests.spark_export.spark_queries import LATE_MAX
from tests.tls.keys import Keys, settings
from tests.tokens.token_node import everything_to_tokens

PAGE = (Path(__file__).resolve().parents[2] / "docs/spark.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = "".join(BLOCK.findall(PAGE))


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    (tmp_path / "keys").mkdir()
    return Keys(tmp_path / "keys")


@pytest.fixture
def tls_node(keys: Keys, tmp_path: Path) -> Iterator[NodeProcess]:
    """The node with TLS of the page: it demands a certificate, and has six orders."""
    variables = {f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in settings(keys).items()}
    with NodeProcess(tmp_path / "tls", environment=variables) as node:
        with blocking.connect(node.address, tls=keys.tls()) as client:
            for number in range(6):
                client.create("orders").push(b"%d" % number)
        yield node
        assert node.stop() == 0


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The file with the token that `token_node` knows."""
    text, _ = create_token(tmp_path / "tokens" / "tokens.json", "spark", int(time.time()))
    file = tmp_path / "spark.token"
    file.write_text(f"{text}\n")
    return file


@pytest.fixture
def token_node(token_file: Path, tmp_path: Path) -> Iterator[NodeProcess]:
    """The node with tokens of the page: it allows nothing without a token, and has six orders."""
    write_rules(tmp_path / "access.toml", [everything_to_tokens()])
    variables = {f"{ENVIRONMENT_PREFIX}ACCESS_RULES": str(tmp_path / "access.toml")}
    with NodeProcess(tmp_path / "tokens", environment=variables) as node:
        with blocking.connect(node.address, token=token_file.read_text().strip()) as client:
            for number in range(6):
                client.create("orders").push(b"%d" % number)
        yield node
        assert node.stop() == 0


def refund_descriptor() -> bytes:
    """What protoc writes for `package shop; message Refund { int64 amount = 1; }` of proto3."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="the extra `protobuf` is missing")
    described = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    described.message_type.add(name="Refund").field.add(name="amount", number=1, type=3, label=1)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[described]).SerializeToString())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_example_gives_what_the_page_shows(
    spark: Any,
    node: NodeProcess,
    tls_node: NodeProcess,
    token_node: NodeProcess,
    token_file: Path,
    keys: Keys,
    registry: RegistryServer,
    tmp_path: Path,
) -> None:
    """Goal: who copies an example gets its result. Method: only the addresses and the folders are those of the test."""
    # All at once: the port of one node can begin with the digits of another example.
    addresses = {"4000": node.address, "4001": tls_node.address, "4002": token_node.address}
    text = re.sub(r"127\.0\.0\.1:(400[012])\b", lambda found: addresses[found[1]], EXAMPLES)
    text = text.replace("/tmp/lake", str(tmp_path))
    text = text.replace("/var/lib/stream-node", str(node.data_dir)).replace("http://127.0.0.1:8081", registry.address)
    text = text.replace("/etc/stream-node/ca.pem", keys.ca).replace("/etc/stream-node/spark.token", str(token_file))
    for name, file in zip(("alice.pem", "alice.key"), keys.alice, strict=True):
        text = text.replace(f"/etc/stream-node/{name}", file)
    (tmp_path / "shop.desc").write_bytes(refund_descriptor())
    (tmp_path / "token").write_text("bearer secret")
    registry.authorization = "Bearer secret"
    registry.add(7, json.dumps({"type": "record", "name": "P", "fields": [{"name": "amount", "type": "long"}]}))
    test = doctest.DocTestParser().get_doctest(text, {}, "docs/spark.md", "docs/spark.md", 0)
    assert len(test.examples) > 40
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    for _ in range(LATE_MAX):
        problems: list[str] = []
        attempted = runner.run(test, out=problems.append, clear_globs=False).attempted
        if WORKER_LATE not in "".join(problems):
            break
        # On a busy machine Spark may end a query, whose Python process must start within ten seconds. The example that
        # started the query is run again, and then those after it.
        test.examples = test.examples[attempted - 1 :]
    assert not problems, "".join(problems)
    assert attempted == len(test.examples)
    assert not spark.streams.active


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS, *WRITE_OPTIONS}))
def test_each_option_has_an_example(name: str) -> None:
    """Goal: no option is explained by words alone."""
    assert re.search(rf'\b{name}=|"{name}"', EXAMPLES), "docs/spark.md has no example with this option"


def table_rows(heading: str) -> list[tuple[str, str | None, str, bool]]:
    """The rows of the table whose first column has this heading."""
    lines = PAGE.split(f"| {heading} |", 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        name, ours, note = (cell.strip() for cell in line.strip("|").split("|"))
        known = None if ours in ("ignored", "refused") else ours.strip("`")
        rows.append((name.strip("`"), known, note, ours == "refused"))
    return rows


@pytest.mark.parametrize(("heading", "options"), [("Kafka's source", SOURCE), ("Kafka's sink", SINK)])
def test_the_tables_of_kafkas_options_are_those_of_the_errors(heading: str, options: tuple[KafkaOption, ...]) -> None:
    """Goal: page and errors say the same, and each of our names in them exists."""
    assert table_rows(heading) == [tuple(each) for each in options]
    assert {each.ours for each in options if each.ours} <= {*READ_OPTIONS, *WRITE_OPTIONS}


def test_the_last_sentence_names_what_kafka_does_not_have() -> None:
    """Goal: an option is in a table of Kafka's, or among ours alone."""
    told = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("Ours alone are") :]))
    about_decoding = set(DECODE_OPTIONS)
    assert {*READ_OPTIONS, *WRITE_OPTIONS} - {each.ours for each in (*SOURCE, *SINK)} == told | about_decoding
