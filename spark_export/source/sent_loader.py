"""Imports the modules that `spark_export.source.sent_code` has sent to a Python process of Spark.

This module is executed before any other module of this project can be imported, so it imports none.
"""

from __future__ import annotations

import builtins
import io
import marshal
import pickle
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any


def load_bundle(name: str, code: bytes, table: Mapping[str, bytes]) -> ModuleType:
    """Makes each module of a bundle importable under its own name with the prefix `name` and a dot.

    Returns the module `name`, which has the method `BundleFinder.restored` as a function.
    """
    finder = BundleFinder(name, code, table)
    sys.meta_path.insert(0, finder)
    bundle = __import__(name)
    bundle.restored = finder.restored  # type: ignore[attr-defined]
    return bundle


class BundleFinder(MetaPathFinder, Loader):
    """Finds and loads the modules of one bundle. The name of each module begins with the name of the bundle.

    The modules themselves import each other by their names in this project. No `__init__` of a package is executed.
    """

    def __init__(self, name: str, code: bytes, table: Mapping[str, bytes]) -> None:
        self._name = name
        self._code = code
        self._table = table
        parents = {each.rpartition(".")[0] for each in table}
        self._packages = parents | {each.rpartition(".")[0] for each in parents}
        # Functions take `__import__` from the builtins of their module, so no other code in this process is concerned.
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        top, _, own = fullname.partition(".")
        if top != self._name or not (own in self._table or own in self._packages):
            return None
        return spec_from_loader(fullname, self, is_package=own not in self._table)

    def exec_module(self, module: ModuleType) -> None:
        own = module.__name__.partition(".")[2]
        if own not in self._table:
            return
        vars(module)["__builtins__"] = self._builtins
        exec(marshal.loads(self._table[own]), vars(module))
        for value in vars(module).values():
            # Spark shows errors with the name of their module, which should be the one that the user knows.
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == module.__name__:
                value.__module__ = own
        if own == "spark_export.source.sent_code":
            module.set_own_bundle(self._name, self._code)

    def restored(self, content: bytes) -> Any:
        """Returns a pickled class, or the instance of a pickled pair of a class and attributes."""
        found = _Unpickler(io.BytesIO(content), self._renamed).load()
        if isinstance(found, type):
            return found
        kind, attributes = found
        made = kind.__new__(kind)
        vars(made).update(attributes)
        return made

    def _renamed(self, module: str) -> str:
        return f"{self._name}.{module}" if module in self._table or module in self._packages else module

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        # `import a.b` would bind `a`. The modules of a bundle only use `from a.b import c`.
        renamed = self._renamed(name) if level == 0 and fromlist else name
        return __import__(renamed, globals, locals, fromlist or (), level)


class _Unpickler(pickle.Unpickler):
    """Unpickles an object, and takes the classes of this project from a bundle, not from an installed copy."""

    def __init__(self, source: io.BytesIO, renamed: Any) -> None:
        super().__init__(source)
        self._renamed = renamed

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(self._renamed(module), name)
