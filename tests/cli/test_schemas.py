"""Every command has a promise for `--json`; here, those of the commands that start nodes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.promised.block_schemas import BLOCK_SCHEMAS
from tests.cli.promised.cardinal_schemas import CARDINAL_SCHEMAS
from tests.cli.promised.cert_schemas import CERT_SCHEMAS
from tests.cli.promised.cluster_schemas import CLUSTER_SCHEMAS
from tests.cli.promised.export_schemas import EXPORT_SCHEMAS
from tests.cli.promised.health_schemas import HEALTH_SCHEMAS
from tests.cli.promised.identity_schemas import IDENTITY_SCHEMAS
from tests.cli.promised.mirror_schemas import MIRROR_SCHEMAS
from tests.cli.promised.repair_schemas import REPAIR_SCHEMAS
from tests.cli.promised.rule_schemas import RULE_SCHEMAS
from tests.cli.promised.schemas import SCHEMAS, Listening
from tests.cli.promised.status_schemas import STATUS_SCHEMAS
from tests.cli.promised.token_schemas import TOKEN_SCHEMAS
from tests.cli.promised.top_schemas import TOP_SCHEMAS
from tests.cli.test_help import COMMANDS


def test_every_command_has_a_schema() -> None:
    promised = {*SCHEMAS, *CARDINAL_SCHEMAS, *BLOCK_SCHEMAS, *EXPORT_SCHEMAS, *IDENTITY_SCHEMAS}
    promised |= {
        *REPAIR_SCHEMAS,
        *CERT_SCHEMAS,
        *RULE_SCHEMAS,
        *TOKEN_SCHEMAS,
        *HEALTH_SCHEMAS,
        *TOP_SCHEMAS,
        *STATUS_SCHEMAS,
        *MIRROR_SCHEMAS,
        *CLUSTER_SCHEMAS,
    }
    assert sorted(" ".join(name) for name in COMMANDS) == sorted(promised)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_serve_says_where_it_listens(tmp_path: Path, flags: list[str]) -> None:
    command = [sys.executable, "-m", "stream_node", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node:
        assert node.stdout is not None
        line = msgspec.json.decode(node.stdout.readline(), type=Listening)
        node.terminate()
        assert node.wait(60) == 0
        assert node.stdout.read() == b""
    assert (line.pid, line.data_dir, len(line.addresses)) == (node.pid, str(tmp_path), 1)
