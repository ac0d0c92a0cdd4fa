"""Writes the Python source of one specialised codec and makes a function of it. It knows no BARE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

# Parts of a message up to this number are added one by one; beyond it, one join is faster (measured on
# CPython 3.11).
SUM_PARTS_MAX = 4
# So many functions are compiled at a time.
COMPILED_FUNCTIONS = 100


class Source:
    """Functions in source, and the objects that they refer to by name.

    Names are drawn from one counter, so no two uses of a helper clash, however they are nested.
    """

    def __init__(self, **names: Any) -> None:
        self._names: dict[str, Any] = names
        self._constants: dict[int, str] = {}
        self._count = 0
        self._lines: list[str] = []
        self._starts: list[int] = []
        self._indent = 0

    def line(self, text: str) -> None:
        if not self._indent:
            self._starts.append(len(self._lines))
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines below `head`, such as `if x:`. There must be at least one."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, prefix: str) -> str:
        """A name that is used nowhere else."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> str:
        """The name under which the source refers to an object."""
        if id(value) not in self._constants:
            name = self._constants[id(value)] = self.name("c")
            self._names[name] = value
        return self._constants[id(value)]

    def made(self, name: str) -> Callable[..., Any]:
        """The function called `name`, once all are written."""
        # Some functions at a time: what Python needs to compile a text grows with the text.
        starts = [*self._starts[::COMPILED_FUNCTIONS], len(self._lines)]
        for start, end in pairwise(starts):
            exec(compile("\n".join(self._lines[start:end]), "<bare codec>", "exec"), self._names)
        return self.function(name)

    def function(self, name: str) -> Callable[..., Any]:
        """Another of the functions, after `made`."""
        function: Callable[..., Any] = self._names[name]
        return function


def joined(parts: list[str]) -> str:
    """An expression for the bytes of several expressions together."""
    if not parts:
        return 'b""'
    if len(parts) <= SUM_PARTS_MAX:
        return " + ".join(parts)
    return f'b"".join(({", ".join(parts)}))'
