"""Decides whether this process uses the compiled modules of `stream-node-speedups`, and makes Python find them.

The compiled form of `ockam.transport.frames` is the extension module `stream_node_speedups/ockam/frames.….so`.
`CompiledFinder` stands in front of Python's own finders (`sys.meta_path`) and maps the name of the module to this file.
Modules without a compiled form are found by Python's own finders, as always.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from companion.version import VERSION

PACKAGE: Final = "stream_node_speedups"
PURE_VARIABLE: Final = "STREAM_NODE_PURE"
"""The environment variable that turns the compiled modules off: any value but the empty one and `0`."""


class Companion(NamedTuple):
    """Whether this process uses compiled modules.

    is_used: whether they are used.
    reason: why the pure modules are used; empty if the compiled ones are.
    is_wrong: whether the compiled modules are installed but cannot be used, which somebody should know.
    modules: the names of the modules that have a compiled form; empty if none is installed or they are turned off.
    """

    is_used: bool
    reason: str
    is_wrong: bool
    modules: tuple[str, ...] = ()

    def describe(self) -> str:
        """Returns a text for people, for example `pure Python: stream-node-speedups is not installed`."""
        return f"compiled by mypyc: {len(self.modules)} modules" if self.is_used else f"pure Python: {self.reason}"


class CompiledFinder:
    """Finds the compiled form of modules. files: the file of each of these modules, by the module's name.

    It has no base class, because importing `importlib.abc` takes as long as importing all of this package.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def examine_companion(environment: Mapping[str, str], version: str = VERSION) -> Companion:
    """Returns whether compiled modules are to be used: they are installed, and were compiled from the present sources.

    version: the version of stream-node.
    """
    if environment.get(PURE_VARIABLE, "") not in ("", "0"):
        return Companion(False, f"{PURE_VARIABLE} is set", False)
    try:
        built = import_module(f"{PACKAGE}.built")
    except ModuleNotFoundError:
        return Companion(False, "stream-node-speedups is not installed", False)
    modules: tuple[str, ...] = built.MODULES
    if version != built.VERSION:
        reason = f"stream-node-speedups {built.VERSION} is installed beside stream-node {version}; install {version}"
        return Companion(False, reason, True, modules)
    # Equal versions are not enough: the sources of a checkout change without a new version. The import is here, since
    # most processes come no further than to this function's first lines.
    from companion.fingerprint import fingerprint

    try:
        is_same = fingerprint(built.SOURCES) == built.FINGERPRINT
    except OSError as error:
        return Companion(False, f"stream-node-speedups cannot be compared with {error.filename}", True, modules)
    if not is_same:
        reason = "stream-node-speedups was compiled from other sources than these; build it again"
        return Companion(False, reason, True, modules)
    if not all(file.is_file() for file in find_files(modules).values()):
        reason = f"stream-node-speedups was built for another Python than this one ({sys.implementation.cache_tag})"
        return Companion(False, reason, True, modules)
    return Companion(True, "", False, modules)


def find_files(modules: Sequence[str]) -> dict[str, Path]:
    """Returns the compiled file of each module, by the module's name."""
    folder = Path(str(import_module(PACKAGE).__file__)).parent
    suffix = EXTENSION_SUFFIXES[0]
    return {module: folder / (module.replace(".", "/") + suffix) for module in modules}


COMPANION: Final = examine_companion(os.environ)
"""The decision for this process. It is made when this module is imported, and never changes."""

if COMPANION.is_used:
    sys.meta_path.insert(0, CompiledFinder(find_files(COMPANION.modules)))
