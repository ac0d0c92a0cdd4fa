"""Goal: the extra `otel` is loaded only where traces are on, and without it nothing else changes.

Method: processes of their own. In front of the path they have a package `opentelemetry` that raises the error of a
package that is not installed, so that the tests find the same on every machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.support.command import ROOT

ABSENT = "raise ModuleNotFoundError(\"No module named 'opentelemetry'\", name='opentelemetry')\n"
INSTALL = "in a checkout: pip install '.[otel]'"

CLIENT = """
import sys
from stream_client import InvalidArgument
from stream_client.blocking import connect

address, traces = sys.argv[1:]
try:
    with connect(address, traces=traces or False) as client:
        print(client.create("orders").push(b"first"))
except InvalidArgument as error:
    print(error)
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "ockam.tracing", "requests"))))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The variables of a process without the extra."""
    package = tmp_path / "absent" / "opentelemetry"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(ABSENT)
    return {"PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}"}


def run_client(address: str, traces: str, environment: Mapping[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CLIENT, address, traces],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_a_client_and_a_node_need_no_extra_while_traces_are_off(tmp_path: Path, environment: Mapping[str, str]) -> None:
    """Goal: what is off is not loaded, and a client that traces says what to install. Method: a push of a client, and
    the modules that its process has then."""
    with NodeProcess(tmp_path / "data", environment=environment) as node:
        assert run_client(node.address, "", environment) == ["0", "[]"]
        refusal, modules = run_client(node.address, "http://127.0.0.1:4318", environment)
        assert refusal == f"traces need the extra `otel` (opentelemetry): {INSTALL}"
        assert "opentelemetry" not in modules
        assert node.stop() == 0


def test_a_node_with_traces_says_what_to_install(tmp_path: Path, environment: Mapping[str, str]) -> None:
    node = NodeProcess(tmp_path / "data", environment={**environment, "STREAM_NODE_TRACES": "http://127.0.0.1:4318"})
    with pytest.raises(NodeNotStarted) as caught:
        node.start()
    assert f"traces: traces need the extra `otel` (opentelemetry): {INSTALL}" in str(caught.value)
    assert not (tmp_path / "data" / "streams.sqlite").exists()


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://collector:port"])
def test_what_is_no_url_is_refused(tmp_path: Path, environment: Mapping[str, str], url: str) -> None:
    from stream_node.node.config import Config, ConfigError
    from stream_node.node.server import start_traces

    with pytest.raises(ConfigError, match=f"traces: '{url}' is not the URL of a collector"):
        start_traces(Config(traces=url))
