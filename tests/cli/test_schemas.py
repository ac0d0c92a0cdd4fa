"""Every command has a promise for `--json`; here, those of the commands that start nodes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.promised import REPORTS, promised
from tests.cli.test_help import COMMANDS


def test_every_command_has_a_schema() -> None:
    assert sorted(" ".join(name) for name in COMMANDS) == sorted(REPORTS)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_serve_says_where_it_listens(tmp_path: Path, flags: list[str]) -> None:
    command = [sys.executable, "-m", "stream_node", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node:
        assert node.stdout is not None
        line = msgspec.json.decode(node.stdout.readline(), type=promised.Listening)
        node.terminate()
        assert node.wait(60) == 0
        assert node.stdout.read() == b""
    assert (line.pid, line.data_dir, len(line.addresses)) == (node.pid, str(tmp_path), 1)


def test_a_report_with_another_name_of_a_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `keys`"):
        msgspec.json.decode(b'{"certificate": "a", "key": "b", "keys": "b"}', type=promised.AuthorityMade)
    with pytest.raises(msgspec.ValidationError, match="missing required field `key`"):
        msgspec.json.decode(b'{"certificate": "a"}', type=promised.AuthorityMade)
