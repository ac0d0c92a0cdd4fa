"""Goal: the client is installed without the node, from this tree, and needs what it says. Method: build its wheel,
install it in an environment of its own, and use it with a node of another environment."""

from __future__ import annotations

import gc
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from stream_node.cli import app
from stream_node.node.process import NodeProcess
from tests.black_box.installed import Installed, build_wheel
from tests.style.tree import ROOT

CLIENT = ROOT / "tools/client"
BLOCKING = """
import sys
from stream_client import blocking

with blocking.connect(sys.argv[1]) as client:
    stream = client.create("orders")
    stream.push("one")
    print([message.data for message in stream.pull(0)])
assert not {"anyio", "trio", "stream_node", "stream_storage.log"} & sys.modules.keys()
"""
TRIO = """
import sys
import trio
from stream_client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        stream = await client.create("orders")
        await stream.push("two")
        print([message.data for message in await stream.pull(0)])

trio.run(main)
"""


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


def asked_for(project: dict[str, Any]) -> set[str]:
    return set(chain(project["dependencies"], *project["optional-dependencies"].values()))


def test_the_client_asks_for_versions_that_the_node_asks_for() -> None:
    """Goal: one version of a package fits both. Method: the node asks for all that the client asks for."""
    node, client = project(ROOT), project(CLIENT)
    assert asked_for(client) <= asked_for(node)
    assert (client["requires-python"], client["license"]) == (node["requires-python"], node["license"])


def needed(*names: str) -> dict[str, Distribution]:
    """Returns the installed distributions that these need, those of the names too."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        each = waiting.pop()
        if each.name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found[each.name] = distribution(each.name)
            waiting += map(Requirement, found[each.name].requires or [])
    return found


@pytest.mark.slow
def test_the_client_works_without_the_node(tmp_path: Path) -> None:
    """Goal: the wheel has the modules that both clients need, and its metadata names the packages.
    Method: environments with these packages and no others, and a node of this environment."""
    wheel = build_wheel(CLIENT, tmp_path / "wheel")
    asked = project(CLIENT)
    for name, program, packages in (
        ("blocking", BLOCKING, asked["dependencies"]),
        ("trio", TRIO, [*asked["dependencies"], *asked["optional-dependencies"]["trio"]]),
    ):
        alone = Installed(tmp_path / name)
        zipfile.ZipFile(wheel).extractall(alone.packages)
        for each in needed(*packages).values():
            for top in {file.parts[0] for file in each.files or [] if file.parts[0] not in ("..", "__pycache__")}:
                (alone.packages / top).symlink_to(each.locate_file(top))  # type: ignore[arg-type]
        with NodeProcess(tmp_path / f"data-{name}") as node:
            assert alone.program(program, node.address) == f"[b'{'one' if program == BLOCKING else 'two'}']\n"


def test_the_node_does_not_start_beside_the_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: an uninstallation of the client cannot take files from a node that is in use. Method: the file that only
    the client installs is there."""
    monkeypatch.setattr(app, "CLIENT_ALONE", CLIENT / app.CLIENT_ALONE.name)
    monkeypatch.setattr(gc, "set_threshold", lambda _objects: None)
    monkeypatch.setattr(sys, "argv", ["stream-node", "--version"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (1, "")
    assert "pip uninstall stream-node-client stream-node" in told.err


@pytest.mark.soak
@pytest.mark.network
def test_pip_installs_the_client_of_a_checkout(tmp_path: Path) -> None:
    """Goal: `pip install ./tools/client` is all that a program needs, and it is as small as docs/deploy.md says. Beside
    the node, the client works, and the node refuses to start before an uninstallation can take files from it.
    Method: a clone, and empty environments; the figures are those of the page."""
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    with NodeProcess(tmp_path / "data") as node:
        for extra, program, count, megabytes in (("", BLOCKING, 3, 9), ("[trio]", TRIO, 11, 13)):
            alone = Installed(tmp_path / f"client{extra}")
            alone.pip("install", "--quiet", f"./tools/client{extra}", source=source)
            alone.pip("check")
            alone.program(program, node.address)
            assert len(list(alone.packages.glob("*.dist-info"))) == count
            size = sum(file.stat().st_size for file in alone.packages.rglob("*") if file.is_file())
            # Bytecode, and versions to come.
            assert size < 1.5 * megabytes * 1e6, size
        alone.pip("install", "--quiet", "--no-deps", ".", source=source)
        alone.borrow()
        alone.program(TRIO, node.address)
    with pytest.raises(AssertionError, match="pip uninstall stream-node-client stream-node"):
        alone("--version")
