"""Goal: a node in a small memory limit bounds itself, and is not killed by one client that pushes large messages.

Method: the texts of both versions of cgroups; and a real cgroup of 256 MiB, the request of the manifest, where this
machine lets one be made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_client.blocking import connect
from stream_node import memory_limit
from stream_node.config import Config
from stream_node.memory_limit import bounded, find_memory_limit
from stream_node.process import NodeProcess

LIMIT_BYTES = 256 * 1024 * 1024


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/", {"memory.max": "268435456\n"}, LIMIT_BYTES),
        ("0::/a/b", {"a/b/memory.max": "max\n", "a/memory.max": "268435456\n"}, LIMIT_BYTES),
        ("4:memory:/docker/1\n0::/", {"memory/memory.limit_in_bytes": "268435456\n"}, LIMIT_BYTES),
        ("0::/", {"memory.max": "max\n"}, None),
        ("0::/", {}, None),
    ],
)
def test_the_limit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], limit: int | None
) -> None:
    monkeypatch.setattr(memory_limit, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory_limit, "OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(own + "\n")
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert find_memory_limit() == limit
    assert (bounded(Config(), limit) == Config()) == (limit is None)


def test_settings_below_the_bounds_stay() -> None:
    small = Config(peer_memory_bytes_max=2**20, identity_in_flight_bytes_max=2**20)
    found = bounded(small, LIMIT_BYTES)
    assert (found.peer_memory_bytes_max, found.identity_in_flight_bytes_max) == (2**20, 2**20)
    assert bounded(small, 2**40) is small


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with the limit, of version 1 or 2; skips where none can be made."""
    own = {
        line.split(":")[1]: line.split(":", 2)[2].strip("/") for line in memory_limit.OWN_CGROUPS.read_text().split()
    }
    is_old = "memory" in own
    root = memory_limit.CGROUPS / "memory" if is_old else memory_limit.CGROUPS
    made = root / own.get("memory", own.get("", "")) / f"stream-node-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(LIMIT_BYTES))
    except OSError as error:
        if made.is_dir():
            made.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    yield made
    made.rmdir()


@pytest.mark.slow  # stores 120 MB within the limit
def test_large_messages_of_one_client_do_not_kill_a_node_with_little_memory(tmp_path: Path, cgroup: Path) -> None:
    class Limited(NodeProcess):
        def command(self) -> list[str]:
            return ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *super().command()]

    with Limited(tmp_path / "data") as node, connect(node.address) as client:
        for number in range(2):
            with client.create("s").publisher() as publisher:
                pushes = [publisher.push(bytes([number, each]) * 7_500_000) for each in range(4)]
            assert [push.index for push in pushes] == [4 * number + each for each in range(4)]
        assert node.stop() == 0
    assert "memory_bounded" in (tmp_path / "data.log").read_text()
