"""`cardinal produce`, `consume`, `inspect` and `simulate`: files, recordings and a node."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cardinal_streams.transports.file_transport import Recorder
from cardinal_streams.transports.transport import Delivery
from tests.cli.command import CommandLine
from tests.cli.promised import promised

ZERO = "0x" + "0" * 64


def hash_text(number: int) -> str:
    return f"0x{number:064x}"


def batch(number: int, values: Mapping[str, str]) -> dict[str, Any]:
    parent = hash_text(number - 1)
    return {
        "number": hex(number),
        "weight": hex(number),
        "hash": hash_text(number),
        "parent": parent,
        "values": dict(values),
    }


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    path = tmp_path / "blocks.json"
    path.write_bytes(msgspec.json.encode([batch(number, {f"a/{number}": "0x01", "x": "0x"}) for number in (1, 2, 3)]))
    return path


@pytest.fixture
def application(tmp_path: Path, stream: str) -> Path:
    """Topics that no other test has."""
    path = tmp_path / "mine.toml"
    path.write_text(f'default_topic = "{stream}"\n[[prefix]]\npattern = "a/"\ntopic = "{stream}-a"\n')
    return path


def test_blocks_go_through_a_node_once(at_node: CommandLine, blocks: Path, application: Path) -> None:
    options = ("--application", application)
    sent = at_node("cardinal", "produce", blocks, *options, "--json").read(promised.CardinalProduced)
    assert (sent.application, sent.blocks, sent.sent, sent.skipped, sent.messages) == ("mine", 3, 3, 0, 6)
    again = at_node("cardinal", "produce", *options, "--json", stdin=b"")
    assert "no list of batches" in again.failed(1)
    said = at_node("cardinal", "produce", blocks, *options).text
    assert said.startswith("0 blocks in 0 messages, 3 were there")


def test_a_client_goes_on_where_it_stopped(at_node: CommandLine, blocks: Path, application: Path, stream: str) -> None:
    at_node("cardinal", "produce", blocks, "--application", application)
    options = ("--application", application, "--client", stream, "--start", f"0:{ZERO}:0", "--json")
    rows = at_node("cardinal", "consume", *options, "--limit", "1", "--values").read_lines(promised.CardinalConsumed)
    rows += at_node("cardinal", "consume", *options, "--values").read_lines(promised.CardinalConsumed)
    added = [each for row in rows for each in row.added]
    assert [(each.number, each.hash, each.parent) for each in added] == [
        (number, hash_text(number), hash_text(number - 1)) for number in (1, 2, 3)
    ]
    assert added[1].contents == {"a/2": "0x01", "x": "0x"}
    assert (added[1].values, added[1].deletes, added[1].weight) == (2, 0, "0x2")
    assert at_node("cardinal", "consume", *options).read_lines(promised.CardinalConsumed) == []
    positions = at_node("index", "list", "--client", stream, "--json").text
    assert f"{stream}-a" in positions


def test_a_recording_stands_in_for_a_node(command: CommandLine, blocks: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recorded"
    assert command("cardinal", "produce", blocks, "--recording", recording).code == 0
    text = command("cardinal", "consume", "--recording", recording, "--values").text
    assert text.splitlines()[:3] == [f"+ 1 {hash_text(1)} 2 values, 0 deletes", "    a/1 = 0x01", "    x = 0x"]
    unordered = command("cardinal", "consume", "--recording", recording, "--unordered", "--json", "--limit", "2")
    assert [row.added[0].number for row in unordered.read_lines(promised.CardinalConsumed)] == [1, 2]
    options = ("cardinal", "consume", "--recording", recording)
    assert "only a node keeps positions" in command(*options, "--client", "a").failed(2)
    assert "in place of a node" in command(*options, "--node", "a:1").failed(2)


def test_files_are_inspected(command: CommandLine, blocks: Path, tmp_path: Path) -> None:
    report = command("cardinal", "inspect", blocks, "--json").read(promised.CardinalInspected)
    assert (report.kind, report.blocks, report.first_number, report.last_number) == ("batches", 3, 1, 3)
    recording = tmp_path / "recorded"
    command("cardinal", "produce", blocks, "--recording", recording)
    report = command("cardinal", "inspect", recording, "--json").read(promised.CardinalInspected)
    assert (report.kind, report.blocks, report.problems) == ("recording", 3, 0)
    assert "3 blocks numbered 1 to 3, 6 values" in command("cardinal", "inspect", blocks).text
    recording.write_bytes(recording.read_bytes()[:-3])
    assert "bytes into a record" in command("cardinal", "inspect", recording).failed(1)


def test_values_against_their_schema(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(msgspec.json.encode([batch(1, {"c/1/n/1": "0x00"})]))
    done = command("cardinal", "inspect", path, "--application", "evm", "--json")
    report = msgspec.json.decode(done.stdout, type=promised.CardinalInspected)
    assert (done.code, report.problems) == (1, 1)
    assert "no block hash" in report.told[0]


def test_real_blocks_are_inspected(command: CommandLine, shared_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "ethereum.json"
    path.write_bytes(gzip.decompress((shared_dir / "data" / "cardinal" / "ethereum_batches.json.gz").read_bytes()))
    report = command("cardinal", "inspect", path, "--application", "evm", "--json").read(promised.CardinalInspected)
    assert (report.blocks, report.values, report.problems) == (43, 23_174, 0)
    assert {topic.topic: topic.messages for topic in report.topics}["evm-1-logs"] == 9_087


@pytest.mark.parametrize("over_node", [False, True])
def test_a_simulation_is_consumed(at_node: CommandLine, tmp_path: Path, over_node: bool) -> None:
    where = () if over_node else ("--recording", tmp_path / "recorded")
    expected = tmp_path / "chain.json"
    options = ("--seed", "7", "--blocks", "40", "--deep-reorgs", "1", "--producers", "2", "--expect", expected)
    made = at_node("cardinal", "simulate", *options, *where, "--json").read(promised.CardinalSimulated)
    rows = at_node("cardinal", "consume", "--application", "simulated", *where, "--json").read_lines(
        promised.CardinalConsumed
    )
    chain: list[str] = []
    for row in rows:
        if row.reverted_to is not None:
            del chain[chain.index(row.reverted_to.hash) + 1 :]
            continue
        del chain[len(chain) - len(row.removed) :]
        chain += [each.hash for each in row.added]
    assert chain == [each["hash"] for each in msgspec.json.decode(expected.read_bytes())]
    assert (chain[-1], made.seed, made.blocks) == (made.head, 7, len(chain))
    assert sum(row.reverted_to is not None for row in rows) == 1


def test_a_seed_is_chosen_and_told(command: CommandLine, tmp_path: Path) -> None:
    made = command("cardinal", "simulate", "--recording", tmp_path / "r", "--json").read(promised.CardinalSimulated)
    again = command("cardinal", "simulate", "--recording", tmp_path / "s", "--seed", made.seed, "--json")
    assert again.read(promised.CardinalSimulated).head == made.head


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("consume", "--application", "other"), "'other' is no application"),
        (("consume", "--start", "7"), "'7' is not NUMBER:HASH:WEIGHT"),
        (("simulate", "--blocks", "3"), "1 deep reorgs need at least 22 blocks"),
    ],
)
def test_wrong_usage(command: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    assert says in command("cardinal", *arguments).failed(2)


def test_a_description_that_is_wrong(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('default_topic = "a"\n[[prefix]]\npattern = "("\ntopic = "b"\n')
    assert "no regular expression" in command("cardinal", "consume", "--application", path).failed(2)


def test_a_file_keeps_the_position(command: CommandLine, blocks: Path, tmp_path: Path) -> None:
    recording, position = tmp_path / "recorded", tmp_path / "position"
    command("cardinal", "produce", blocks, "--recording", recording)
    options = ("--recording", recording, "--position", position, "--json")
    rows = command("cardinal", "consume", *options, "--limit", "1").read_lines(promised.CardinalConsumed)
    rows += command("cardinal", "consume", *options).read_lines(promised.CardinalConsumed)
    assert [each.number for row in rows for each in row.added] == [1, 2, 3]


def test_what_is_wrong_is_told_beside_the_updates(command: CommandLine, blocks: Path, tmp_path: Path) -> None:
    """Goal: nobody takes silence for the end. Method: 25 deliveries that are no messages, a block without its Batch,
    and then topics that nobody sends to."""
    recording = tmp_path / "recorded"
    command("cardinal", "produce", blocks, "--recording", recording)
    with Recorder(recording) as recorder:
        recorder.record(Delivery("blocks", 0, 100 + number, b"\7" + bytes(32), b"") for number in range(25))
        recorder.record([Delivery("blocks", 0, 200, b"\3" + bytes(32) + b"a/1", b"")])
    for unordered in ((), ("--unordered",)):
        done = command("cardinal", "consume", "--recording", recording, *unordered)
        told = done.stderr.splitlines()
        assert done.code == 0
        assert len(done.stdout.splitlines()) == 3
        assert "no message in blocks:0 at 100: the prefix byte 07" in told[0]
        assert told[-2:] == ["stream-node: 5 more like these", "stream-node: 1 block incomplete, and not printed"]
        assert len(told) == 22
    done = command("cardinal", "consume", "--recording", recording, "--application", "simulated")
    assert "there is nothing to read on the topics of 'simulated': sim-blocks, " in done.stderr


def test_blocks_with_sub_batches_are_refused(command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "blocks.json"
    announced = batch(2, {}) | {"batches": {"s/": hash_text(9)}}
    path.write_bytes(msgspec.json.encode([batch(1, {}), announced]))
    recording = tmp_path / "recorded"
    error = command("cardinal", "produce", path, "--recording", recording).failed(1)
    assert "announce sub batches ('s/') - at $[1].batches" in error
    assert not recording.exists()


def test_over_kafka(command: CommandLine, blocks: Path, tmp_path: Path) -> None:
    kafka: Any = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    cluster = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=60).brokers.values()
    where = ("--kafka", f"{broker.host}:{broker.port}")
    assert command("cardinal", "produce", blocks, *where, "--json").read(promised.CardinalProduced).sent == 3
    assert command("cardinal", "produce", blocks, *where, "--json").read(promised.CardinalProduced).skipped == 3
    options = (*where, "--position", tmp_path / "position", "--start", f"0:{ZERO}:0", "--json")
    rows = command("cardinal", "consume", *options).read_lines(promised.CardinalConsumed)
    assert [each.number for row in rows for each in row.added] == [1, 2, 3]
    assert command("cardinal", "consume", *options).read_lines(promised.CardinalConsumed) == []
    assert "give only one" in command("cardinal", "produce", blocks, *where, "--recording", tmp_path / "r").failed(2)
    cluster.purge()


def test_a_chain_with_a_gap_is_told_repaired_and_ended_at_a_block(
    at_node: CommandLine, blocks: Path, application: Path, stream: str, tmp_path: Path
) -> None:
    """Goal: what is missing is named, and sent again by --repair alone. Method: the Batch of block 2 without its other
    message, as a topic that has lost it; the file is compressed, and the start has no 0x."""
    options = ("--application", application)
    consume = ("cardinal", "consume", *options, "--start", f"0:{ZERO[2:]}:0", "--json")
    absent = at_node(*consume)
    assert (absent.code, absent.warnings) == (
        0,
        [f"there is nothing to read on the topics of 'mine': {stream}, {stream}-a"],
    )
    assert at_node("stream", "list", stream).text.count(stream) == 0, "reading makes no streams"
    at_node("cardinal", "produce", blocks, *options)
    at_node("stream", "delete", f"{stream}-a", "--yes")
    pieces = tmp_path / "pieces.json.gz"
    whole = msgspec.json.decode(blocks.read_bytes())
    pieces.write_bytes(gzip.compress(msgspec.json.encode([whole[0], whole[2]])))
    assert at_node("cardinal", "produce", pieces, *options, "--json").read(promised.CardinalProduced).sent == 0
    assert (
        at_node("cardinal", "produce", pieces, *options, "--repair", "--json").read(promised.CardinalProduced).sent == 2
    )
    done = at_node(*consume)
    assert done.code == 1
    assert f"block {hash_text(2)} is missing, and 1 block wait for it: 1 messages of prefix 'a/'" in done.stderr
    assert at_node("cardinal", "produce", blocks, *options, "--repair").code == 0
    rows = at_node(*consume, "--until", "1").read_lines(promised.CardinalConsumed)
    assert [each.number for row in rows for each in row.added] == [1]
    rows = at_node(*consume, "--until", hash_text(3)).read_lines(promised.CardinalConsumed)
    assert [each.number for row in rows for each in row.added] == [1, 2, 3]
    past = at_node(*consume, "--until", "9")
    assert (past.code, "the chain ends before block 9" in past.stderr) == (1, True)
