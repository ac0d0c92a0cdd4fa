"""Goal: tables can be read: wide characters, long names, who holds a lease; a shell completes names.

Method: the width of each character by another library's rule (a terminal's), real nodes, and the protocol by which a
shell asks for completions.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from stream_client import StreamInfo, blocking
from stream_node.cli.output import TABLE_COLUMNS, columns
from stream_node.cli.streams import index_admin, stream_admin
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine, completed


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    rows = [("name", "n"), ("日本", "1"), ("e\u0301te\u0301", "2"), ("abcd", "3")]
    assert list(columns(rows)) == ["name  n", "日本  1", "e\u0301te\u0301   2", "abcd  3"]


def test_one_long_name_makes_its_own_row_longer_and_no_other() -> None:
    long = "x" * 200
    rows = [
        ("name", "first", "count"),
        *((f"name {number}", str(number), "1") for number in range(9)),
        (long, "1", "2"),
    ]
    head, *short, last = columns(rows, frozenset({1, 2}))
    assert max(map(len, [head, *short])) <= 80
    assert last.startswith(f"{long}  ")
    assert len({len(line) for line in short}) == 1
    # A table of long names alone stays a table.
    every = list(columns([("name", "n"), *((f"{number}" * 100, "1") for number in range(9))]))
    assert {line.rindex("1") for line in every[1:]} == {102}


def test_usual_rows_of_streams_and_positions_fit_a_terminal() -> None:
    """Names of a dozen characters, millions of messages, gigabytes, and a lease of a member on another machine."""
    hours_ago_us = int((time.time() - 7_400) * 1e6)
    info = StreamInfo("orders-eu", 3, 0, 1_204_331, 3_500_000_000, 1, hours_ago_us, hours_ago_us, None)
    lines = list(columns([stream_admin.HEAD, stream_admin._cells(info)], stream_admin.NUMBERS))
    assert lines[1].split() == ["orders-eu", "3", "0", "1,204,331", "1,204,331", "3.3", "GiB", "2h", "default"]
    position = index_admin._cells("billing", "orders", 3, 1_204_331, 12, hours_ago_us, "db-7:40123:c0ffee")
    lines += columns([index_admin.HEAD, position], index_admin.NUMBERS)
    assert lines[3].split() == ["billing", "orders", "3", "1,204,331", "12", "2h", "db-7:40123:c0ffee"]
    assert [line for line in lines if len(line) > TABLE_COLUMNS] == []


def test_a_list_of_positions_says_which_process_holds_a_lease(
    at_node: CommandLine, node: NodeProcess, stream: str
) -> None:
    with blocking.connect(node.address) as client:
        whole = client.create_partitioned(stream, 1)
        whole.partitions[0].push(b"x")
        with whole.shared_consumer("group") as member:
            next(iter(member))
            listed = at_node("index", "list", "--stream", stream).text
    assert f"{socket.gethostname()[:64]}:{os.getpid()}:" in listed


@pytest.mark.slow
def test_a_shell_completes_streams_consumers_and_contexts(
    at_node: CommandLine, node: NodeProcess, tmp_path: Path
) -> None:
    for name in ("compl-orders", "compl-others", "else"):
        at_node("push", name, "--data", "a")
    at_node("consume", "compl-orders", "--client", "compl-billing")
    at_node("context", "add", "compl-home", node.address)
    folder = tmp_path / "config"
    assert completed(node, folder, "pull", "compl-o") == ["compl-orders", "compl-others"]
    assert completed(node, folder, "push", "compl-or") == ["compl-orders"]
    assert completed(node, folder, "stream", "delete", "compl-ot") == ["compl-others"]
    assert completed(node, folder, "consume", "compl-orders", "--client", "compl-") == ["compl-billing"]
    assert completed(node, folder, "pull", "x", "--context", "compl-") == ["compl-home"]
    # Whoever wants a secure channel gets no answer in the clear.
    assert completed(node, folder, "pull", "--peer", "I" + "0" * 64, "compl-o") == []
