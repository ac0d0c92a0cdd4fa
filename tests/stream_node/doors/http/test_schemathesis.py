"""Goal: schemathesis, which reads the document of OpenAPI, finds no answer of the HTTP door that the document forbids.

Method: schemathesis runs in a process of its own against a running node: requests at the edges of each schema, random
ones and sequences of requests, right ones and wrong ones, with all its checks. `schemathesis.toml` and
`schemathesis_hooks.py` beside this file say what a document cannot say.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stream_node.doors.http.endpoints import OPERATIONS
from stream_node.node.process import NodeProcess

FOLDER = Path(__file__).parent
RUN = "from schemathesis.cli import schemathesis; schemathesis()"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("schemathesis") is None, reason="schemathesis, of the extra `http-tests`, is not installed"
    ),
]


@pytest.mark.parametrize(
    ("examples", "requests_min"),
    [pytest.param(15, 500, id="short"), pytest.param(100, 1_200, id="long", marks=pytest.mark.soak)],
)
def test_schemathesis_finds_nothing(tmp_path: Path, examples: int, requests_min: int) -> None:
    """Every operation is examined in every phase, and the node goes on and writes no error."""
    settings = ["--config-file", str(FOLDER / "schemathesis.toml")]
    amount = ["--max-examples", str(examples), "--seed", os.environ.get("STREAM_NODE_SEED", "17")]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.stream_node.doors.http.schemathesis_hooks",
        "PYTHONPATH": str(FOLDER.parent.parent),
        "NO_PROXY": "*",
    }
    with NodeProcess(tmp_path / "data", arguments=["--http", "127.0.0.1:0"]) as node:
        url = f"http://{node.http[0]}/v1/openapi.json"
        done = subprocess.run(
            [sys.executable, "-c", RUN, *settings, "run", url, *amount, "--no-color"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        assert node.stop() == 0
    count = len(OPERATIONS)
    for phase in ("Coverage", "Fuzzing"):
        assert re.search(rf"{phase} \(in .*\)\s+✅ +{count} passed", output), output
    assert re.search(r"Stateful \(in .*\)\s+Scenarios: +[1-9]", output), output
    found = re.search(r"(\d+) generated, (\d+) passed", output)
    assert found is not None, output
    assert found[1] == found[2]
    assert int(found[1]) >= requests_min
    assert '"level": "error"' not in node.log_file.read_text()
