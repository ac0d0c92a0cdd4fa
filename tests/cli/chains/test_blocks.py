"""`block generate`, `publish`, `subscribe`, `get` and `status` against a node of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from block_node.blocks.files import read_items, write_block
from block_node.blocks.generator import ADDRESS_BOOK_FILE, ChainGenerator, SigningKeys
from block_node.blocks.items import ItemKind, make_item
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support.blocks import join_block


@pytest.fixture(scope="module")
def block_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that has the blocks 0 to 5 of a generated chain."""
    folder = tmp_path_factory.mktemp("blocks")
    refuse_soon = {"STREAM_NODE_ERROR_DELAY_S": "0.05"}
    with NodeProcess(folder / "data", arguments=("--log-level", "error"), environment=refuse_soon) as node:
        for arguments in (
            ("generate", str(folder / "chain"), "--blocks", "6", "--items", "20"),
            ("publish", str(folder / "chain"), "--node", node.address),
        ):
            subprocess.run([sys.executable, "-m", "stream_node", "block", *arguments], check=True, capture_output=True)
        yield node


@pytest.fixture
def at_blocks(command: CommandLine, block_server: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("STREAM_NODE_ADDRESS", block_server.address)
    return command


def test_a_chain_there_and_back(command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated, published, seen in the status, fetched, and written by a subscriber as it was."""
    chain, copy = tmp_path / "chain", tmp_path / "copy"
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        monkeypatch.setenv("STREAM_NODE_ADDRESS", node.address)
        empty = command("block", "status", "--json").read(promised.BlockStatus)
        assert (empty.first_available, empty.last_available, empty.available) == (None, None, [])
        made = command("block", "generate", chain, "--blocks", "6", "--items", "20", "--json").read(
            promised.ChainGenerated
        )
        assert (made.blocks, made.last_block, made.items) == (6, 5, 120)
        done = command("block", "publish", chain / "3.blk.zstd", chain, "--json").read(promised.BlocksPublished)
        assert (done.published, done.first_block, done.last_block, done.acknowledged) == (6, 0, 5, 5)
        status = command("block", "status", "--json").read(promised.BlockStatus)
        assert (status.available, status.stored, status.next_expected) == ([(0, 5)], [(0, 5)], 6)
        assert {"persistence", "verification"} <= set(status.plugins)
        one = command("block", "get", "4", "--out", tmp_path / "4.blk.gz", "--json").read(promised.BlockRow)
        assert (one.block, one.items) == (4, 20)
        assert list(read_items(tmp_path / "4.blk.gz")) == list(read_items(chain / "4.blk.zstd"))
        assert command("block", "get", "--json").read(promised.BlockRow).block == 5
        arguments = ("--from", "1", "--to", "5", "--out", copy, "--suffix", ".blk", "--json")
        rows = command("block", "subscribe", *arguments).read_lines(promised.BlockRow)
        assert [row.block for row in rows] == [1, 2, 3, 4, 5]
        assert rows[3].root == one.root
        assert command("block", "subscribe", *arguments, "--compress").read_lines(promised.BlockRow) == rows
        for number in range(1, 6):
            assert list(read_items(copy / f"{number}.blk")) == list(read_items(chain / f"{number}.blk.zstd"))
        again = command("block", "publish", chain, "--json").read(promised.BlocksPublished)
        assert (again.acknowledged, again.compared) == (5, 6)
        assert "6 of them had come before, with the same root" in command("block", "publish", chain).text


def test_a_node_with_an_address_book_tells_it(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("block", "generate", tmp_path / "chain", "--blocks", "1", "--json")
    settings = {
        "STREAM_NODE_BLOCK_ADDRESS_BOOK": str(tmp_path / "chain" / "keys" / ADDRESS_BOOK_FILE),
        "STREAM_NODE_BLOCK_LEVELS": "structure,merkle,chain,record_proof",
    }
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error"), environment=settings) as node:
        monkeypatch.setenv("STREAM_NODE_ADDRESS", node.address)
        assert command("block", "status", "--json").read(promised.BlockStatus).address_book == [0]
        assert "keys of nodes 0" in command("block", "status").text


def test_what_is_said_in_words(at_blocks: CommandLine, tmp_path: Path) -> None:
    assert at_blocks("block", "generate", tmp_path, "--blocks", "1").text.startswith("1 block of 100 items in ")
    subscribed = at_blocks("block", "subscribe", "--from", "2", "--to", "2").text
    assert at_blocks("block", "get", "2").text.startswith(subscribed.strip()), "the same words for the same block"
    assert "0 to 5" in at_blocks("block", "status").text
    assert at_blocks("block", "get", "2").text.startswith("block 2: 20 items, ")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("get", "77"), 1, "block 77 is not available"),
        (("get", "1", "--out", "block.txt"), 2, "does not end as block files do"),
        (("subscribe", "--from", "4", "--to", "3"), 1, "INVALID_END_BLOCK"),
        (("subscribe", "--from", "99999", "--to", "99999"), 1, "NOT_AVAILABLE"),
        (("publish", "missing.blk"), 1, "missing.blk"),
        (("publish", "."), 2, "there are no block files"),
        (("status", "--also", "nowhere"), 2, "is not HOST:PORT"),
    ],
)
def test_what_cannot_be_done(
    at_blocks: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in at_blocks("block", *arguments).failed(code)


def test_a_block_that_the_node_refuses(at_blocks: CommandLine, tmp_path: Path) -> None:
    at_blocks("block", "generate", tmp_path, "--blocks", "8", "--seed", "1")
    line = at_blocks("block", "publish", tmp_path / "6.blk.zstd").failed(1)
    assert "block 6 was refused (BAD_BLOCK_PROOF)" in line


def test_a_refused_block_is_sent_once(command: CommandLine, tmp_path: Path) -> None:
    """As often as the node's log tells of it."""
    for seed in ("0", "1"):
        command("block", "generate", tmp_path / seed, "--blocks", "2", "--seed", seed)
    with NodeProcess(tmp_path / "data") as node:
        command("block", "publish", tmp_path / "0" / "0.blk.zstd", "--node", node.address)
        said = command("block", "publish", tmp_path / "1" / "1.blk.zstd", "--node", node.address).failed(1)
        # A node that is stopped writes its last log lines; one that is killed may not.
        assert node.stop() == 0
    assert "block 1 was refused (BAD_BLOCK_PROOF)" in said
    log = node.log_file.read_text()
    refused = [line for line in log.splitlines() if "block_refused" in line]
    assert len(refused) == 1, log


def test_a_block_of_too_many_items_is_told_so(command: CommandLine, tmp_path: Path) -> None:
    """Long before any time is up, and as what it is; the limit is a setting."""
    command("block", "generate", tmp_path, "--blocks", "1", "--items", "30000", "--item-bytes", "0")
    settings = {"STREAM_NODE_BLOCK_ITEMS_MAX": "20000"}
    with NodeProcess(tmp_path / "data", environment=settings) as node:
        line = command("block", "publish", tmp_path / "0.blk.zstd", "--node", node.address).failed(1)
    assert "block 0 was refused (INVALID_REQUEST)" in line
    assert "it has more than 20000 items" in line


@pytest.mark.soak
def test_a_block_of_12_million_items_meets_the_limit_and_no_time_limit(command: CommandLine, tmp_path: Path) -> None:
    """With the settings that a node has by itself."""
    header, *rest = ChainGenerator(SigningKeys.generate(1, 2048)).next_block().items
    tiny = join_block([make_item(ItemKind.SIGNED_TRANSACTION, b"")]) * 100_000
    with (tmp_path / "0.blk").open("wb") as file:
        file.write(join_block([header]))
        for _ in range(120):
            file.write(tiny)
        file.write(join_block(rest))
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        line = command("block", "publish", tmp_path / "0.blk", "--node", node.address).failed(1)
    assert "block 0 was refused (INVALID_REQUEST)" in line
    assert "it has more than 5000000 items" in line


def test_another_chain_of_the_same_numbers_is_not_said_to_be_durable(at_blocks: CommandLine, tmp_path: Path) -> None:
    """The roots are those that a node of its own gives to this chain, and that this node gives to what it has."""
    at_blocks("block", "generate", tmp_path, "--blocks", "3", "--items", "20", "--seed", "7")
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as other:
        at_blocks("block", "publish", tmp_path, "--node", other.address)
        given = at_blocks("block", "subscribe", "--from", "0", "--to", "0", "--node", other.address, "--json")
    stored = at_blocks("block", "subscribe", "--from", "0", "--to", "0", "--json")
    roots = [json.loads(done.stdout)["root"] for done in (given, stored)]
    for arguments in ((), ("--json",)):
        line = at_blocks("block", "publish", tmp_path, *arguments).failed(1)
        assert all(root in line for root in roots)
        assert "block 0 is not stored" in line


def test_a_cut_file_of_a_stored_number_is_not_said_to_be_durable(
    at_blocks: CommandLine, block_server: NodeProcess, tmp_path: Path
) -> None:
    """Cut anywhere: within an item, or between two."""
    whole = (block_server.data_dir.parent / "chain" / "2.blk.zstd").read_bytes()
    items = list(read_items(block_server.data_dir.parent / "chain" / "2.blk.zstd"))
    (tmp_path / "2.blk.zstd").write_bytes(whole[:-20])
    assert "2.blk.zstd" in at_blocks("block", "publish", tmp_path / "2.blk.zstd").failed(1)
    write_block(tmp_path / "2.blk", items[:-1])
    assert "block 2 failed" in at_blocks("block", "publish", tmp_path / "2.blk").failed(1)
    write_block(tmp_path / "2.blk", items)
    assert at_blocks("block", "publish", tmp_path / "2.blk").text.startswith("block 2 is durable")


def test_a_folder_as_consensus_nodes_write_it(
    at_blocks: CommandLine, block_server: NodeProcess, tmp_path: Path
) -> None:
    """Names of 36 digits, a marker beside each file, and what has nothing to do with blocks."""
    chain = block_server.data_dir.parent / "chain"
    for number in range(3):
        (tmp_path / f"{number:036}.blk.zstd").write_bytes((chain / f"{number}.blk.zstd").read_bytes())
        (tmp_path / f"{number:036}.mf").touch()
    strange = [f"{2**64}.blk", f"{0:037}.blk", "0.blk.bak", "notes.txt"]
    for name in strange:
        (tmp_path / name).write_bytes(b"x")
    done = at_blocks("block", "publish", tmp_path, "--json").read(promised.BlocksPublished)
    assert (done.published, done.first_block, done.last_block, done.compared) == (3, 0, 2, 3)
    names = {*strange, *(f"{number:036}.mf" for number in range(3))}
    assert {Path(path).name for path in done.passed_over} == names
    text = at_blocks("block", "publish", tmp_path).text
    assert text.splitlines()[1].startswith("passed over 7 files not named as a block: ")
    assert text.rstrip().endswith(" and 2 more")
    (tmp_path / f"{1:019}.blk.zstd").write_bytes(b"x")
    assert "are of the same block" in at_blocks("block", "publish", tmp_path).failed(1)


def test_a_link_to_nowhere_that_is_named_as_a_block(
    at_blocks: CommandLine, block_server: NodeProcess, tmp_path: Path
) -> None:
    """Before, the others were said to be durable, and this one was not mentioned."""
    (tmp_path / "0.blk.zstd").write_bytes((block_server.data_dir.parent / "chain" / "0.blk.zstd").read_bytes())
    (tmp_path / "1.blk.zstd").symlink_to(tmp_path / "nowhere")
    assert "1.blk.zstd is named as a block, but is no file" in at_blocks("block", "publish", tmp_path).failed(1)


def test_two_blocks_of_one_number(at_blocks: CommandLine, tmp_path: Path) -> None:
    for seed in ("0", "1"):
        at_blocks("block", "generate", tmp_path / seed, "--blocks", "1", "--items", "20", "--seed", seed)
    line = at_blocks("block", "publish", tmp_path / "0", tmp_path / "1").failed(1)
    assert "has another block 0" in line or "two different blocks 0 were given" in line


def test_no_node_is_reached(command: CommandLine, tmp_path: Path) -> None:
    command("block", "generate", tmp_path, "--blocks", "1", "--suffix", ".blk")
    for arguments in (("status",), ("get", "0"), ("publish", tmp_path, "--give-up", "0.1")):
        command("block", *arguments, "--node", "127.0.0.1:1").failed(3)
    # A publisher with no time at all would give up for no reason that it could name.
    assert command("block", "publish", tmp_path, "--give-up", "0", "--node", "127.0.0.1:1").code == 2


def test_the_stream_of_the_blocks_is_read_by_all_and_written_by_none(at_blocks: CommandLine) -> None:
    """Its messages are the blocks; pushing, truncating and deleting are refused, and so is another stream like it."""
    name = "block_node.blocks"
    assert at_blocks("pull", name).code == 0
    before = at_blocks("stream", "info", name, "--json").text
    assert json.loads(before)["messages"] == 6
    for arguments in (
        ("push", name, "--data", "x"),
        ("stream", "truncate", name, "--before", "3", "--yes"),
        ("stream", "delete", name, "--yes"),
        ("stream", "retention", name, "--max-messages", "1", "--yes"),
    ):
        assert at_blocks(*arguments).code == 1
    assert "made and written by the block node alone" in at_blocks("push", "block_node.mine", "--data", "x").failed(1)
    assert at_blocks("stream", "info", name, "--json").text == before
