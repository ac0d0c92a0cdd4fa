"""`block publish --grpc` and `block subscribe --grpc`: a node over gRPC, by its address alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from block_node.blocks.files import read_items
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised


def test_a_chain_there_and_back_over_grpc(command: CommandLine, tmp_path: Path) -> None:
    chain, copy = tmp_path / "chain", tmp_path / "copy"
    command("block", "generate", chain, "--blocks", "6", "--items", "20")
    arguments = ("--log-level", "error", "--grpc", "127.0.0.1:0")
    with NodeProcess(tmp_path / "data", arguments=arguments) as node:
        peer = ("--grpc", node.grpc[0])
        done = command("block", "publish", chain, *peer, "--json").read(promised.BlocksPublished)
        assert (done.published, done.first_block, done.last_block, done.acknowledged) == (6, 0, 5, 5)
        again = command("block", "publish", chain / "4.blk.zstd", *peer)
        assert again.text.startswith("block 4 is durable")
        asked = ("--from", "2", "--to", "4", "--out", copy, *peer, "--json")
        rows = command("block", "subscribe", *asked).read_lines(promised.BlockRow)
        assert [(row.block, row.items, row.root) for row in rows] == [(2, 20, None), (3, 20, None), (4, 20, None)]
        for number in (2, 3, 4):
            assert list(read_items(copy / f"{number}.blk.zstd")) == list(read_items(chain / f"{number}.blk.zstd"))
        assert "NOT_AVAILABLE" in command("block", "subscribe", "--from", "90000", *peer).failed(1)


def test_what_does_not_go_over_grpc_is_said(command: CommandLine, tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    command("block", "generate", chain, "--blocks", "3")
    (chain / "1.blk.zstd").unlink()
    nobody = ("--grpc", "127.0.0.1:1", "--give-up", "0.1")
    assert "follow each other" in command("block", "publish", chain, *nobody).failed(2)
    assert "127.0.0.1:1 is unreachable" in command("block", "publish", chain / "0.blk.zstd", *nobody).failed(3)


@pytest.mark.parametrize("option", ["--also", "--via"])
def test_grpc_goes_to_one_node(command: CommandLine, option: str) -> None:
    both = command("block", "subscribe", "--grpc", "127.0.0.1:1", option, "127.0.0.1:2")
    assert "leave out --also" in both.stderr
    assert both.code == 2
