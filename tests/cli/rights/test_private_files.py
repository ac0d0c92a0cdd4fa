"""Goal: no other user of the machine can read what a node stores, whatever the folder and the umask were.

Method: real nodes and commands with an umask of 000, in a folder that everybody may enter; all files are looked at. An
older version left files that everybody may read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ockam.identity.channel.trust_list import save_trusted
from ockam.identity.rules.audit import FILE_MODE as AUDIT_MODE
from stream_client import blocking
from stream_node.care.doctor_access import check_private_files
from stream_node.node.config import Config
from stream_node.node.identity.channel_services import trust_file
from stream_node.node.process import NodeProcess
from tests.cli.command import CommandLine


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def exposed(folder: Path) -> dict[str, str]:
    """The files below a folder that others may read, with their permissions."""
    found = {}
    for file in folder.rglob("*"):
        mode = stat.S_IMODE(file.stat().st_mode)
        if file.is_file() and mode & 0o077 and mode != AUDIT_MODE:
            found[str(file.relative_to(folder))] = f"{mode:o}"
    return found


@pytest.mark.parametrize("arguments", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_nobody_else_may_read_what_a_node_stores(
    tmp_path: Path, command: CommandLine, arguments: tuple[str, ...]
) -> None:
    data, rules = tmp_path / "data", tmp_path / "rules.toml"
    data.mkdir(mode=0o755)
    rules.write_text('[[rule]]\nname = "all"\nwho = ["anonymous"]\nmay = ["all"]\non = [""]\n')
    arguments = (*arguments, "--access-rules", str(rules))
    save_trusted(trust_file(str(data)), {bytes(range(32)): "a name"})
    node = NodeProcess(data, arguments=arguments)
    with node:
        with blocking.connect(node.address) as client:
            client.create("s").push(b"secret")
        assert exposed(data) == {}
        assert command("backup", tmp_path / "copy", "--data-dir", data).code == 0
        assert node.stop() == 0
    assert command("restore", tmp_path / "copy", "--data-dir", data, "--over").code == 0
    assert command("restore", tmp_path / "copy", "--data-dir", tmp_path / "new").code == 0
    for folder in (data, tmp_path / "copy", tmp_path / "new"):
        assert exposed(folder) == {}
    # What an older version left is told by doctor, and is made private at the next start.
    for file in data.rglob("streams.sqlite*"):
        file.chmod(0o644)
    assert "streams.sqlite" in check_private_files(Config(data_dir=str(data))).text
    with NodeProcess(data, arguments=arguments) as node:
        assert node.stop() == 0
    assert exposed(data) == {}
