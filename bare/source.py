"""Collects the Python source of one codec and compiles the source to functions. This module does not depend on BARE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

# The largest number of parts of a message that are concatenated with `+`. For more parts, one `join` is faster
# (measured on CPython 3.11).
SUM_PARTS_MAX = 4
# The number of functions that one call of `compile` gets.
COMPILED_FUNCTIONS = 100


class Source:
    """The Python source of functions, and the objects to which this source refers by name.

    names: objects to which the source can refer from the start. `name` returns no name twice."""

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
        """Writes the line `head`, such as `if x:`. Lines within the context are indented; at least one must follow."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> str:
        """Returns the name by which the source refers to an object. The same object always gets the same name."""
        if id(value) not in self._constants:
            name = self._constants[id(value)] = self.name("c")
            self._names[name] = value
        return self._constants[id(value)]

    def made(self, name: str) -> Callable[..., Any]:
        """Compiles all functions and returns the one with this name. Call it once, after all functions are written."""
        # Only some functions are compiled at a time, because the memory that Python needs grows with the size of the
        # text.
        starts = [*self._starts[::COMPILED_FUNCTIONS], len(self._lines)]
        for start, end in pairwise(starts):
            exec(compile("\n".join(self._lines[start:end]), "<bare codec>", "exec"), self._names)
        return self.function(name)

    def function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = self._names[name]
        return function


def joined(parts: list[str]) -> str:
    """Returns the source of an expression that concatenates the values of several bytes expressions."""
    if not parts:
        return 'b""'
    if len(parts) <= SUM_PARTS_MAX:
        return " + ".join(parts)
    return f'b"".join(({", ".join(parts)}))'
