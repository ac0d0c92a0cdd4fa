"""Collects the Python source of one codec and compiles it to functions. It knows nothing of BARE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

# Up to this number, the parts of a message are concatenated with `+`. For more parts, one `join` is faster (measured on
# CPython 3.11).
SUM_PARTS_MAX = 4
# The number of functions that are compiled at a time.
COMPILED_FUNCTIONS = 100


class Source:
    """The source of functions, and the objects that the functions refer to by name.

    All generated names have a number from one counter, so no two names clash, however the code is nested.
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
        """Returns a context manager: the lines written inside it are indented below the line `head`, such as `if x:`.
        At least one line must be written."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, prefix: str) -> str:
        """Returns a new name that is used nowhere else in the source."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> str:
        """Returns the name by which the source refers to an object."""
        if id(value) not in self._constants:
            name = self._constants[id(value)] = self.name("c")
            self._names[name] = value
        return self._constants[id(value)]

    def made(self, name: str) -> Callable[..., Any]:
        """Compiles all functions and returns the function with this name. Called when all functions are written."""
        # Compile some functions at a time: the memory that Python needs to compile a text grows with the text.
        starts = [*self._starts[::COMPILED_FUNCTIONS], len(self._lines)]
        for start, end in pairwise(starts):
            exec(compile("\n".join(self._lines[start:end]), "<bare codec>", "exec"), self._names)
        return self.function(name)

    def function(self, name: str) -> Callable[..., Any]:
        """Returns the function with this name. Called after `made`."""
        function: Callable[..., Any] = self._names[name]
        return function


def joined(parts: list[str]) -> str:
    """Returns an expression that concatenates the bytes of several expressions."""
    if not parts:
        return 'b""'
    if len(parts) <= SUM_PARTS_MAX:
        return " + ".join(parts)
    return f'b"".join(({", ".join(parts)}))'
