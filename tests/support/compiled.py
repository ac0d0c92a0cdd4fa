"""Compiled modules (`tools/compile_wheel.py`) in tests: what a test does to a class or a function that is compiled.

Compiled code calls compiled methods and functions directly. So a method that a test replaces is not called by it, and a
class that a test derives cannot be made. Tests that need one of these are skipped where the modules are compiled; they
test the same source where it is not.
"""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

import pytest

from tools.compile_wheel import MODULES

IS_COMPILED = find_spec("stream_node__mypyc") is not None
"""Whether the tests run with compiled modules."""
REPLACED = "replaces a part of a compiled module, which its callers would not notice"


def is_compiled(thing: object) -> bool:
    """Whether a module is compiled, or a class or function comes from a compiled module."""
    module = thing if isinstance(thing, ModuleType) else inspect.getmodule(thing)
    file = getattr(module, "__file__", None) or ""
    is_ours = getattr(module, "__name__", "").partition(".")[0] in OURS
    return is_ours and file.endswith(tuple(EXTENSION_SUFFIXES))


def needs_pure(*things: object) -> None:
    """Skips the test if one of these modules, classes or functions is compiled."""
    if any(map(is_compiled, things)):
        skip()


OURS = {module.partition(".")[0] for module in MODULES}
"""The packages that have compiled modules."""

skipped: set[str] = set()
"""The node ids of the tests that were skipped here. pytest-trio loses the reason of a skip (`tests/conftest.py`)."""


def skip() -> NoReturn:
    skipped.add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])
    pytest.skip(REPLACED)


def skip_patches_of_compiled() -> None:
    """From now on, `monkeypatch.setattr` skips the test if the replacement would have no effect.

    It would have none on a method of a compiled class, on a compiled function, and where the new value is derived from
    a compiled class. Constants of compiled modules can be replaced.
    """
    replace = pytest.MonkeyPatch.setattr

    def setattr_or_skip(self: pytest.MonkeyPatch, target: Any, name: Any, *value: Any, **options: Any) -> None:
        place, attribute = target, name
        if isinstance(target, str):
            module, _, attribute = target.rpartition(".")
            place = _found(module)
        new = value[0] if value else name
        old = inspect.getattr_static(place, attribute, None)
        changes_class = not isinstance(place, ModuleType) and is_compiled(
            place if isinstance(place, type) else type(place)
        )
        if changes_class or (callable(old) and is_compiled(old) and is_compiled(place)) or _is_derived(new):
            skip()
        replace(self, target, name, *value, **options)

    pytest.MonkeyPatch.setattr = setattr_or_skip  # type: ignore[method-assign]


def _found(path: str) -> Any:
    """Returns the module or class with this path."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def _is_derived(value: object) -> bool:
    return isinstance(value, type) and not is_compiled(value) and any(map(is_compiled, value.__mro__))
