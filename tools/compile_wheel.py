"""Compiles the modules through which every push and every pull passes, by mypyc, into the wheel that is being built.

    STREAM_NODE_COMPILE=1 python -m pip wheel --no-deps --wheel-dir dist .

This is a hook of hatchling. The compiled wheel and the pure one have the same modules: Python prefers the extension
module `ockam/transport/frames.….so` to `ockam/transport/frames.py` beside it. Without the variable, nothing is
compiled, and no compiler is needed. An editable installation is never compiled, so a checkout always runs its sources.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "STREAM_NODE_COMPILE"
GROUP = "stream_node"
"""All compiled code is in one extension module, `stream_node__mypyc`; the other extension modules only refer to it."""
COMPILER = ["mypy[mypyc]>=2.4,<3", "setuptools>=70"]
"""The compiler. It also reads the types of the packages that the modules import."""

MODULES = (
    "bare.varint",
    "ockam.actors.mailbox",
    "ockam.actors.node",
    "ockam.transport.connection_machine",
    "ockam.transport.frames",
    "stream_client.core.client_connection",
    "stream_client.core.push_queue",
    "stream_client.core.pushes",
    "stream_service.page_codec",
    "stream_service.push_codec",
    "stream_service.workers.pull_machine",
    "stream_service.workers.pull_pages",
    "stream_service.workers.pulls",
    "stream_service.workers.push_run",
    "stream_service.workers.readable_stream",
    "stream_service.workers.stream",
    "stream_service.workers.stream_bounds",
    "stream_service.workers.stream_machine",
    "stream_service.workers.tail_machine",
    "stream_storage.checksum",
    "stream_storage.commit",
    "stream_storage.sqlite.log",
    "stream_storage.stream_rows",
)


class CompileHook(BuildHookInterface[Any]):
    """Adds the extension modules to the wheel, and names the platform in the wheel's name."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Returns the packages that the build needs besides hatchling; none for a pure wheel."""
        if not self._compiles():
            return []
        project: list[str] = self.metadata.core.dependencies
        return [*COMPILER, *project]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written. version: "editable" for a checkout, which stays pure."""
        if version == "editable" or not self._compiles():
            return
        self._work = tempfile.TemporaryDirectory(prefix="stream-node-compiled-")
        built = compile_modules(Path(self.root), Path(self._work.name))
        build_data["force_include"].update({str(built / name): name for name in files_below(built)})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called after the wheel was written. Removes the files that were compiled for it."""
        if hasattr(self, "_work"):
            self._work.cleanup()

    @staticmethod
    def _compiles() -> bool:
        return os.environ.get(VARIABLE, "") not in ("", "0")


def compile_modules(root: Path, work: Path) -> Path:
    """Compiles MODULES of a checkout to extension modules, and returns the folder that has them.

    root: the folder that has the packages. work: an empty folder for the C files and the result.
    Raises SystemExit or an error of setuptools if the compiler fails.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    built = work / "built"
    before = Path.cwd()
    # mypyc takes the names of modules from their paths, so it runs in the folder of the packages.
    os.chdir(root)
    try:
        paths = [f"{module.replace('.', '/')}.py" for module in MODULES]
        options = ["--config-file", "pyproject.toml", "--cache-dir", str(work / "cache"), *paths]
        extensions = mypycify(options, opt_level="2", debug_level="0", group_name=GROUP, target_dir=str(work / "c"))
        command = Distribution({"name": GROUP, "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(built), str(work / "objects")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return built


def files_below(folder: Path) -> list[str]:
    """Returns the paths of all files in a folder, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
