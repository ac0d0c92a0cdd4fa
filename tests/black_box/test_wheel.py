"""Goal: the built wheel is the whole program. Method: build it, compare it with the tree, install it elsewhere, use it.

The quick test takes the other packages from this environment. The long one has pip install them, as users do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.style.tree import ROOT, packages

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that CI runs on."""
LINES = b"one\ntwo\nthree\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    """Goal: no page, schema or picture that the program reads is left out, and nothing else is in. Method: compare
    with the files in git; a checkout without git is compared with its folders."""
    done = subprocess.run(["git", "ls-files", *packages(ROOT)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("needs git and a clone")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = {name for name in done.stdout.splitlines() if (ROOT / name).exists()}
    assert there <= inside, there - inside
    # A file that is not in git yet is in the wheel, if it is not ignored.
    extra = inside - there
    assert all((ROOT / name).exists() for name in extra)
    assert not [name for name in extra if "__pycache__" in name or name.split("/")[0] not in packages(ROOT)]


class Installed:
    """An environment outside the repository, in which only its own command is used."""

    def __init__(self, folder: Path) -> None:
        self._home = folder / "home"
        self._home.mkdir()
        self.folder = folder
        self.python = folder / "environment/bin/python"

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAM_NODE_", "PYTHON"))}
        return {**kept, "HOME": str(self._home), "XDG_DATA_HOME": str(self._home)}

    def __call__(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = [str(self.python.with_name("stream-node")), *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, cwd=self._home, env=self.environment(), check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def smoke(self) -> None:
        """What the README begins with: the version, a node, a push, a pull; then the node stops in good order."""
        version = re.search('^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        assert version is not None
        # Compiled modules that the environment has are told.
        assert self("--version").decode().strip().partition(", compiled")[0] == f"stream-node {version[1]}"
        serve = [str(self.python.with_name("stream-node")), "serve", "--listen", "127.0.0.1:0", "--json"]
        node = subprocess.Popen(serve, cwd=self._home, env=self.environment(), stdout=subprocess.PIPE)
        try:
            assert node.stdout is not None
            line: dict[str, Any] = msgspec.json.decode(node.stdout.readline())
            address = line["addresses"][0]
            assert Path(line["data_dir"]).is_relative_to(self._home)
            self("push", "numbers", "--node", address, stdin=LINES)
            assert self("pull", "numbers", "--node", address, "--raw") == LINES
            node.terminate()
            assert node.wait(60) == 0
        finally:
            node.kill()
            node.wait()
            if node.stdout is not None:
                node.stdout.close()
        # The code that ran was the installed one.
        where = "import stream_node; print(stream_node.__file__)"
        found = subprocess.run(
            [str(self.python), "-c", where], cwd=self._home, env=self.environment(), capture_output=True, check=True
        )
        assert Path(found.stdout.decode().strip()).is_relative_to(self.folder)


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Goal: nothing of the checkout is needed. Method: unpack the wheel as an installer does, beside the packages of
    this environment, and leave the repository."""
    venv.create(tmp_path / "environment", with_pip=False)
    installed = Installed(tmp_path)
    paths = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = tmp_path / "environment/lib" / paths / "site-packages"
    zipfile.ZipFile(wheel).extractall(target)
    # Only a path: the editable installation of this repository in that folder does not come along.
    (target / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    command = installed.python.with_name("stream-node")
    entry = zipfile.ZipFile(wheel).read(next(n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("points.txt")))
    assert b"stream-node = stream_node.cli.app:main" in entry
    command.write_text(f"#!{installed.python}\nfrom stream_node.cli.app import main\nmain()\n")
    command.chmod(0o755)
    installed.smoke()


@pytest.mark.soak
@pytest.mark.network
def test_the_installation_that_the_page_describes_works(tmp_path: Path) -> None:
    """Goal: the commands of docs/deploy.md install a node from the locks. Method: they run, with another folder."""
    venv.create(tmp_path / "environment", with_pip=False)
    installed = Installed(tmp_path)
    page = (ROOT / "docs/deploy.md").read_text()
    lines = re.findall(r"^sudo /opt/stream-node/bin/pip (install .*)$", page, re.MULTILINE)
    assert len(lines) == 4
    pip = [sys.executable, "-m", "pip", "--python", str(installed.python), "--disable-pip-version-check", "--quiet"]
    # A copy of what is in git: a build in the tree would leave files there.
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    for line in lines[:2]:
        done = subprocess.run(
            [*pip, *line.split()], cwd=source, capture_output=True, text=True, check=False, timeout=600
        )
        skip_without_network(done)
        assert done.returncode == 0, done.stderr
    installed.smoke()


@pytest.mark.soak
@pytest.mark.network
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_installs_a_checkout_on_each_python(version: str, tmp_path: Path) -> None:
    """Goal: `pip install .`, as the README says, gives a working node, and the packages that it names are enough.
    Method: a clone, and an environment of each Python that this machine has, which holds nothing else."""
    assert "`pip install .`" in (ROOT / "README.md").read_text(encoding="utf-8")
    python = find_python(version)
    if python is None:
        pytest.skip(f"needs Python {version}")
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "environment"], check=True)
    installed = Installed(tmp_path)
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(installed.python), "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=600)
    skip_without_network(done)
    assert done.returncode == 0, done.stderr
    check = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout
    installed.smoke()


def find_python(version: str) -> str | None:
    """Returns an interpreter of this version: the one that runs, one on PATH, or one of pyenv."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    named = [shutil.which(f"python{version}")]
    named += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    # A shim of pyenv is there for versions that are not chosen, too, and fails.
    runs = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    for each in filter(None, named):
        done = subprocess.run([each, "-c", runs], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return each
    return None


def skip_without_network(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode and re.search("Max retries|Connection|Name or service|Network is", done.stderr):
        pytest.skip("needs packages from outside")
