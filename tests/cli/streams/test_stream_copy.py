"""Goal: `stream copy` makes a stream that nobody can tell from its original, on the same node or another.

Method: random messages; what both nodes have is read by the client and compared, times and indexes included.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_client import Header, Retention, blocking
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.support import strangers

MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.binary(max_size=9),
        st.none() | st.binary(max_size=9),
        st.lists(st.builds(Header, st.text("aé\n", max_size=3), st.binary(max_size=3)), max_size=3),
    ),
    max_size=15,
)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("other") / "data", arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


def everything(address: str, name: str) -> list[list[Any]]:
    """All messages of a stream with all that is stored of them, by partition."""
    with blocking.connect(address) as client:
        return [
            [
                (each.index, each.time_us, each.key, list(each.headers), each.data)
                for each in part.follow(stop_at_end=True)
            ]
            for part in client.get_stream(name).partitions
        ]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, cut=st.integers(0, 5))
def test_a_copy_has_everything(
    at_node: CommandLine, node: NodeProcess, other: NodeProcess, messages: list[Any], cut: int
) -> None:
    """Of a stream too whose front is gone."""
    # A name of its own each time: an example that Hypothesis runs again would find its first copy.
    name = f"copied {uuid.uuid4()}"
    with blocking.connect(node.address) as client:
        stream = client.create_partitioned(name, 3)
        for partition, data, key, headers in messages:
            stream.get_partition(partition).push(data, key=key, headers=headers)
        stream.get_partition(0).truncate(cut)
    original = everything(node.address, name)
    report = at_node("stream", "copy", name, name, "--to", other.address, "--json").read(promised.StreamCopied)
    assert report == promised.StreamCopied(name, name, 3, sum(map(len, original)), 0, True)
    assert everything(other.address, name) == original
    assert at_node("stream", "copy", name, f"{name} here").code == 0
    assert everything(node.address, f"{name} here") == original


def test_a_copy_is_resumed_and_repeated(at_node: CommandLine, node: NodeProcess, stream: str) -> None:
    """Goal: a copy that was cut short goes on where it stopped, and a finished one takes what is new, nothing twice."""
    target = f"{stream} copy"
    at_node("push", stream, stdin=b"".join(b"%d\n" % number for number in range(2_500)))
    with blocking.connect(node.address) as client:
        # A first try that was killed behind its first page.
        page = client.get_stream(stream).get_partition(0).pull_page(0, 1_000).messages
        assert client.create(target).copy_in(0, page).stored
    copy = ("stream", "copy", stream, target)
    said = at_node(*copy).failed(1)
    assert f"{target} is there with 1,000 messages; --resume goes on if it is a copy of {stream}" in said
    for added, copied, there_before in ((b"", 1_500, 1_000), (b"new\n", 1, 2_500), (b"", 0, 2_501)):
        at_node("push", stream, stdin=added)
        report = at_node(*copy, "--resume", "--json").read(promised.StreamCopied)
        assert report == promised.StreamCopied(stream, target, 1, copied, there_before, False)
        assert everything(node.address, target) == everything(node.address, stream)
    assert at_node(*copy, "--resume").text == (
        f"0 messages in 1 partition copied from {stream} to {target}; 2,501 were there before\n"
    )


def test_a_retention_and_positions_go_with_it(at_node: CommandLine, node: NodeProcess, stream: str) -> None:
    at_node("push", stream, stdin=b"a\nb\nc\nd\n")
    at_node("stream", "truncate", stream, "--before", "2", "--yes")
    at_node("stream", "retention", stream, "--max-messages", "9")
    assert at_node("stream", "copy", stream, f"{stream} copy").text == (
        f"2 messages in 1 partition copied from {stream} to {stream} copy\n"
    )
    at_node("index", "set", f"{stream} copy", "3", "--client", "c")
    assert at_node("consume", f"{stream} copy", "--client", "c").stdout == b"d\n"
    with blocking.connect(node.address) as client:
        (info,) = client.get_stream(f"{stream} copy").info()
    assert (info.retention, info.first_index) == (Retention(messages=9), 2)
    at_node("push", f"{stream} copy", "--data", "of its own")
    assert f"{stream} has messages from 2 to 3: nothing can follow on" in at_node(
        "stream", "copy", stream, f"{stream} copy", "--resume"
    ).failed(1)


def test_what_cannot_be_copied_is_told(at_node: CommandLine, node: NodeProcess, tmp_path: Path, stream: str) -> None:
    at_node("push", stream, stdin=b"a\nb\n")
    at_node("push", f"{stream} 2", stdin=b"a\nc\n")
    at_node("stream", "create", f"{stream} 3", "--partitions", "2")
    assert "onto itself" in at_node("stream", "copy", stream, stream).failed(2)
    assert "onto itself" in at_node("stream", "copy", stream, stream, "--to", node.address).failed(2)
    assert "has no stream" in at_node("stream", "copy", f"{stream} none", "x").failed(1)
    differs = at_node("stream", "copy", stream, f"{stream} 2", "--resume").failed(1)
    assert f"{stream} 2/0 is no copy of {stream}: the messages at 1 differ" in differs
    assert "has 2 partitions already, and a copy" in at_node("stream", "copy", stream, f"{stream} 3").failed(1)
    assert "cannot reach" in at_node("stream", "copy", stream, "x", "--to", "127.0.0.1:1").failed(3)


def test_the_node_of_the_copy_is_waited_for_as_long_as_said(at_node: CommandLine, stream: str) -> None:
    """The service there says that it is there, and nothing more."""
    at_node("push", stream, stdin=b"one\n")
    with strangers.answering(strangers.greets_and_refuses_once) as address:
        line = at_node("stream", "copy", stream, stream, "--to", address, "--timeout", "0.3").failed(1)
    assert f"{address} has not answered for 0.3 s" in line
