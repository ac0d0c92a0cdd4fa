"""Builds the wheel `stream-node-speedups` from the sources of stream-node, which are beside this folder.

mypyc compiles the modules of MODULES to extension modules, which are in the wheel's package `stream_node_speedups`: the
one of `ockam.transport.frames` is `stream_node_speedups/ockam/frames.….so`. The package's module `built` says from
which sources they were compiled, and `companion.loading` compares that with the installed sources before it uses them.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Extension, setup

SOURCES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCES))

from companion.fingerprint import fingerprint  # noqa: E402
from companion.version import VERSION  # noqa: E402

PACKAGE = "stream_node_speedups"
MODULES = (
    "bare.varint",
    "ockam.transport.connection_machine",
    "ockam.transport.frames",
    "ockam.identity.generation_cache",
    "ockam.actors.mailbox",
    "ockam.actors.node",
    "stream_storage.checksum",
    "stream_storage.appended",
    "stream_storage.commit",
    "stream_storage.sqlite.log",
    "stream_storage.stream_rows",
    "stream_client.core.client_connection",
    "stream_client.core.distribution",
    "stream_client.core.open_batch",
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
    "stream_service.workers.stream_machine",
    "stream_service.workers.tail_machine",
)
"""The modules through which every push and every pull passes."""


def path_of(module: str) -> Path:
    return (SOURCES / module.replace(".", "/")).with_suffix(".py")


def imported_by(module: str) -> Iterator[str]:
    """The modules of stream-node from which a module imports names.

    The compiler puts constants of these modules into the compiled code, so the code fits only these sources.
    """
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (name for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def compiled(folder: Path) -> list[Extension]:
    """Compiles MODULES to C, and returns the extensions that setuptools builds from that.

    folder: the folder for the C files.
    """
    before = Path.cwd()
    # mypyc takes the names of modules from their paths, so it runs in the folder of the packages. Its C files get
    # their absolute paths.
    os.chdir(SOURCES)
    try:
        paths = [str(path_of(module).relative_to(SOURCES)) for module in MODULES]
        options = ["--config-file", "pyproject.toml", *paths]
        extensions = mypycify(options, opt_level="2", debug_level="0", group_name=PACKAGE, target_dir=str(folder / "c"))
    finally:
        os.chdir(before)
    for extension in extensions:
        # All compiled code is in one extension; the others only name its modules.
        if not extension.name.endswith("__mypyc"):
            extension.name = f"{PACKAGE}.{extension.name}"
    return extensions


def write_package(folder: Path) -> Path:
    """Writes the Python modules of the package into a folder in this folder, and returns that folder."""
    package = folder / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(
        '"""Hot modules of stream-node, compiled. `companion` of stream-node loads them."""\n'
    )
    sources = {name for module in MODULES for name in imported_by(module) if path_of(name).is_file()}
    names = tuple(sorted(sources | set(MODULES)))
    constants = {"VERSION": VERSION, "MODULES": MODULES, "SOURCES": names, "FINGERPRINT": fingerprint(names)}
    text = "".join(f"{name} = {value!r}\n" for name, value in constants.items())
    (package / "built.py").write_text(
        f'"""What the compiled modules were compiled from. Written by setup.py."""\n\n{text}'
    )
    return package


def main() -> None:
    with tempfile.TemporaryDirectory(prefix=PACKAGE) as name:
        work = Path(name)
        setup(
            name="stream-node-speedups",
            version=VERSION,
            description="Hot modules of stream-node, compiled by mypyc from its own sources",
            license="Apache-2.0",
            python_requires=">=3.11",
            packages=[PACKAGE],
            package_dir={PACKAGE: str(write_package(work))},
            # pip also runs this script to ask for the name and the version, which needs no compiling.
            ext_modules=[] if NOTHING_BUILT.intersection(sys.argv) else compiled(work),
            # Nothing is left in the checkout.
            options={"build": {"build_base": str(work / "build")}, "egg_info": {"egg_base": str(work)}},
        )


NOTHING_BUILT = {"egg_info", "dist_info"}
"""The commands by which pip asks for the name and the version."""

if __name__ == "__main__":
    main()
