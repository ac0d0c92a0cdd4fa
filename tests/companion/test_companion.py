"""Goal: compiled modules are used only if they fit the installed sources, and somebody can see it if they do not.

Method: processes of their own, with a package `stream_node_speedups` that was written here: `built.py` says what a real
build would say. Where the real package is installed (`.ci/run`), its modules are looked at, too.
"""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from companion import COMPANION, VERSION
from companion.fingerprint import fingerprint
from companion.loading import examine_companion
from tests.style.tree import ROOT, parse
from tests.support.compiled import is_compiled

SOURCES = ("ockam.transport.frames", "ockam.actors.address")


def plant(
    folder: Path, *, version: str = VERSION, written: str | None = None, tag: str = EXTENSION_SUFFIXES[0]
) -> Path:
    """Writes a package that says that it has a compiled `ockam.transport.frames`. Returns the folder for PYTHONPATH.

    written: the fingerprint that it says; None: the right one.
    tag: the end of the name of the compiled file, which names the version of Python.
    """
    package = folder / "stream_node_speedups"
    package.mkdir()
    (package / "ockam/transport").mkdir(parents=True)
    for name in ("__init__.py", f"ockam/transport/frames{tag}"):
        (package / name).touch()
    known = {"VERSION": version, "MODULES": ("ockam.transport.frames",), "SOURCES": SOURCES}
    known["FINGERPRINT"] = fingerprint(SOURCES) if written is None else written
    (package / "built.py").write_text("".join(f"{name} = {value!r}\n" for name, value in known.items()))
    return folder


def run(path: Path, *command: str, **environment: str) -> str:
    """Runs Python with this folder on its path. Returns what it prints to both streams."""
    clean = {name: value for name, value in os.environ.items() if name != "STREAM_NODE_PURE"}
    done = subprocess.run(
        [sys.executable, *command],
        env=clean | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
        cwd=path,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("version", "written", "reason"),
    [
        ("0.0.9", None, f"stream-node-speedups 0.0.9 is installed beside stream-node {VERSION}; install {VERSION}"),
        (VERSION, "0" * 64, "stream-node-speedups was compiled from other sources than these; build it again"),
    ],
)
@pytest.mark.parametrize("package", ["stream_client", "ockam", "stream_storage", "stream_service", "bare"])
def test_what_does_not_fit_is_not_used_and_said(
    tmp_path: Path, version: str, written: str | None, reason: str, package: str
) -> None:
    path = plant(tmp_path, version=version, written=written)
    if package == "stream_client":
        assert run(path, "-m", "stream_node", "--version") == f"stream-node {VERSION}, pure Python: {reason}\n"
        assert f"pure Python: {reason}" in run(path, "-m", "stream_node", "doctor", "--data-dir", "data")
    # A program that imports only one of our packages.
    shown = run(
        path,
        "-c",
        f"import {package}, companion; from ockam.transport import frames; print(companion.COMPANION, frames.__file__)",
    )
    assert f"reason={reason!r}, is_wrong=True" in shown
    assert shown.rstrip().endswith("ockam/transport/frames.py")


def test_a_node_writes_a_log_line_about_modules_that_do_not_fit(tmp_path: Path) -> None:
    path = plant(tmp_path, written="")
    # The node ends at once: it cannot listen there.
    shown = run(path, "-m", "stream_node", "serve", "--data-dir", "data", "--listen", "192.0.2.1:1")
    assert '"speedups_not_used"' in shown
    assert "compiled from other sources" in shown


def test_modules_that_fit_are_loaded_from_the_other_package(tmp_path: Path) -> None:
    """Method: the compiled file is empty, so its import fails and names it."""
    path = plant(tmp_path)
    empty = str(tmp_path / "stream_node_speedups" / "ockam" / "transport" / "frames.")
    for package in ("stream_client", "ockam", "stream_storage", "stream_service", "bare"):
        assert empty in run(path, "-c", f"import {package}, ockam.transport.frames")
    assert "compiled by mypyc: 1 modules" in run(path, "-c", "import companion; print(companion.COMPANION.describe())")


def test_modules_for_another_python_are_not_used_and_said(tmp_path: Path) -> None:
    path = plant(tmp_path, tag=".cpython-27-x86_64-linux-gnu.so")
    shown = run(path, "-c", "import companion, ockam.transport.frames; print(companion.COMPANION)")
    assert "was built for another Python than this one" in shown
    assert "is_wrong=True" in shown


@pytest.mark.parametrize(("value", "is_pure"), [("1", True), ("yes", True), ("", False), ("0", False)])
def test_a_variable_turns_them_off(tmp_path: Path, value: str, is_pure: bool) -> None:
    path = plant(tmp_path)
    shown = run(path, "-c", "import companion; print(companion.COMPANION.describe())", STREAM_NODE_PURE=value)
    assert ("pure Python: STREAM_NODE_PURE is set" in shown) == is_pure
    assert examine_companion({"STREAM_NODE_PURE": "1"}).describe() == "pure Python: STREAM_NODE_PURE is set"
    # The variable is known to the node, which names variables that nothing reads.
    told = run(path, "-m", "stream_node", "config", "show", STREAM_NODE_PURE="1")
    assert "unknown variable" not in told


def test_without_the_package_nothing_is_said(tmp_path: Path) -> None:
    """Method: Python without the folder of installed packages that may have the real one."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import companion; print(companion.COMPANION)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("Companion(is_used=False, reason='stream-node-speedups is not installed', is_wrong=F")


def test_the_modules_of_this_process_are_compiled() -> None:
    if not COMPANION.is_used:
        pytest.skip(f"no compiled modules here: {COMPANION.reason}")
    assert set(COMPANION.modules) == set(listed_modules())
    assert [module for module in COMPANION.modules if not is_compiled(importlib.import_module(module))] == []


def listed_modules() -> tuple[str, ...]:
    """MODULES of speedups/setup.py, which is not imported here: it needs the compiler."""
    for node in parse(ROOT / "speedups" / "setup.py").body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["MODULES"]:
            found: tuple[str, ...] = ast.literal_eval(node.value)
            return found
    raise AssertionError("no MODULES in speedups/setup.py")


def test_each_package_with_compiled_modules_imports_the_companion_first() -> None:
    """Goal: whichever package a program imports, compiled modules are found from the first of them on."""
    for package in {module.partition(".")[0] for module in listed_modules()}:
        body = parse(ROOT / package / "__init__.py").body
        imported = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        ours = [node for node in imported if ast.unparse(node) not in FOREIGN]
        assert ast.unparse(ours[0]) == "import companion as _companion", package


FOREIGN = ("from __future__ import annotations", "from typing import TYPE_CHECKING, Any")


def test_all_versions_are_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION
    assert project["optional-dependencies"]["fast"] == [f"stream-node-speedups=={VERSION}"]


def test_a_fingerprint_depends_on_every_byte(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("x = 1\n")
    before = fingerprint(["a.b"], tmp_path)
    assert before == fingerprint(["a.b"], tmp_path)
    (tmp_path / "a" / "b.py").write_text("x = 2\n")
    assert before != fingerprint(["a.b"], tmp_path)
    with pytest.raises(OSError, match=r"c\.py"):
        fingerprint(["a.c"], tmp_path)
