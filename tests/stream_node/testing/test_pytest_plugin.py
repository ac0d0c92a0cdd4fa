"""The plugin of pytest, as a user has it: in a process of its own, in a folder without this repository's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream_node.pytest_plugin import OWN_PACKAGES
from tests.style.tree import ROOT, packages

USERS_TESTS = Path(__file__).with_name("orders.py")


def run_tests(folder: Path, text: str, *options: str, passed: int, **variables: str) -> None:
    """Runs a file of tests with the plugin. They must all pass."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "stream_node.pytest_plugin", "-W", "error", *options]
    done = subprocess.run(
        [*command, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "real"])
def test_the_same_tests_pass_against_both_kinds_of_node(tmp_path: Path, kind: str) -> None:
    """Claim: a node in memory does what a real one does. Method: one file of a user's tests, for blocking clients,
    trio and asyncio, against each kind. The file has no other source of the expected values than itself."""
    text = USERS_TESTS.read_text()
    run_tests(tmp_path, text, "--stream-node", kind, "-o", "trio_mode=true", passed=text.count("def test_"))


@pytest.mark.slow
def test_the_async_client_works_with_the_plugin_of_anyio(tmp_path: Path) -> None:
    """Claim: the fixture of the async client is for AnyIO's tests too, on both event loops. Method: one such test."""
    text = """
import pytest

@pytest.mark.anyio
async def test_push(async_stream_client):
    assert await (await async_stream_client.create("orders")).push(b"x") == 0
"""
    run_tests(tmp_path, text, "-p", "no:trio", passed=2)


def test_the_plugin_loads_nothing_that_no_test_asks_for(tmp_path: Path) -> None:
    """Claim: who does not use the fixtures pays nothing. Method: a test looks for the heavy modules in a process
    without other plugins, which load some of them."""
    text = """
import sys

def test_modules():
    ours = {name for name in sys.modules if name.partition(".")[0] in
            ("trio", "anyio", "structlog", "sqlalchemy", "ockam", "stream_client", "stream_service", "stream_node")}
    assert ours == {"stream_node", "stream_node.pytest_plugin", "stream_node.version"}, ours
"""
    run_tests(tmp_path, text, passed=1, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def test_pytest_is_kept_from_all_our_packages() -> None:
    """Claim: the plugin names every package of the wheel, whose assertions pytest would rewrite. Method: compare with
    the tree. `tests/black_box/test_wheel.py` shows that pytest leaves them alone."""
    assert set(packages(ROOT)) == OWN_PACKAGES
