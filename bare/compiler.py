"""The common part of the compilers of encoders and decoders: a codec's functions, and the counts that they share.

A compiled codec is `def NAME(…)`, which handles the usual values, or lets `careful` handle the value. Some types are
inlined, since inlined code is faster; functions keep the size of the source proportional to the size of the type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from bare import model
from bare.errors import Irregular
from bare.limits import Limits
from bare.model import BareType, Shape, parts
from bare.types import Some, Tagged

# The largest number of parts of a message that are concatenated with `+`. For more parts, one `join` is faster
# (measured on CPython 3.11).
SUM_PARTS_MAX = 4
# The number of functions that one call of `compile` gets.
COMPILED_FUNCTIONS = 100
# A type inside this many loops and branches of one function gets its own function, except a small type
# (INLINE_PARTS_MAX): Python allows at most 20 nested loops.
NEST_MAX = 3
# A type with at most this many parts, all of them leaves (types without parts), is inlined where it is used. Every
# other struct gets its own function.
INLINE_PARTS_MAX = 8
# A union with more members than this is read and written through a table of functions. For Python's compiler, each
# branch of an `elif` chain is one more nesting level, and the compiler fails at a few thousand levels.
CHAIN_MEMBERS_MAX = 32


class Compiler:
    """The base of the writers of codecs, which write Python statements line by line.

    prefix, arguments: the beginning of the names, and the first arguments, of the functions that a codec calls.
    names: objects to which the source can refer."""

    def __init__(self, prefix: str, arguments: str, limits: Limits, shape: Shape, **names: Any) -> None:
        self._names: dict[str, Any] = {"Irregular": Irregular, "Some": Some, "Tagged": Tagged, **names}
        self._constants: dict[int, str] = {}
        self._name_count = 0
        self._lines: list[str] = []
        self._starts: list[int] = []
        self._indent = 0
        self._prefix = prefix
        self._arguments = arguments
        self._limits = limits
        self._heads = shape.heads
        self._least = shape.least
        self._functions: dict[int, str] = {}
        self._called: list[BareType] = []
        self._tables: list[tuple[dict[Any, Any], Any, str]] = []
        self._nest = 0
        # The items of all lists and maps of a message are counted together. This is needless if a message has at most
        # one list or map, whose own limit is low enough.
        is_alone = shape.containers == 1 and not shape.heads
        own_max = max(limits.list_items_max, limits.map_entries_max)
        self._counts = shape.containers > 0 and not (is_alone and own_max <= limits.items_max)
        # The other arguments of every function: the depth, and the number of items that the message may still have.
        self._shared = (", depth" if self._heads else "") + (", left" if self._counts else "")

    # The source.

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
        self._name_count += 1
        return f"{prefix}{self._name_count}"

    def constant(self, value: Any) -> str:
        """Returns the name by which the source refers to an object. The same object always gets the same name."""
        if id(value) not in self._constants:
            name = self._constants[id(value)] = self.name("c")
            self._names[name] = value
        return self._constants[id(value)]

    # The functions.

    @contextmanager
    def codec(self, head: str, arguments: str) -> Iterator[None]:
        """Writes the codec `head(arguments)`. The lines within the context handle usual values, and return."""
        with self.block(f"def {head}({arguments}):"):
            with self.block("try:"):
                if self._heads:
                    self.line("depth = 0")
                if self._counts:
                    self.line(f"left = [{self._limits.items_max}]")
                yield
            # Call the careful codec after the handler, so that its error does not have this exception as its context.
            with self.block("except Exception:"):
                self.line("pass")
            self.line(f"return careful({arguments})")

    def made(self, head: str) -> Callable[..., Any]:
        """Writes the functions that the codec calls, compiles all functions, and returns the compiled codec."""
        # `_write_body` appends further types to `_called` while this loop runs. Recursion instead of the loop could
        # exhaust the stack for a long chain of types.
        for node in self._called:
            self._nest = 0
            with self.block(f"def {self._functions[id(node)]}({self._arguments}{self._shared}):"):
                if id(node) in self._heads:
                    self.line("depth += 1")
                    self.line(f"if depth > {self._limits.depth_max}: raise Irregular")
                self._write_body(node)
        # Only some functions are compiled at a time, because the memory that Python needs grows with the size of the
        # text.
        for start, end in pairwise([*self._starts[::COMPILED_FUNCTIONS], len(self._lines)]):
            exec(compile("\n".join(self._lines[start:end]), "<bare codec>", "exec"), self._names)
        for table, key, name in self._tables:
            table[key] = self._names[name]
        codec: Callable[..., Any] = self._names[head]
        return codec

    def _write_body(self, node: BareType) -> None:
        """Writes the statements of the function for a type."""
        raise NotImplementedError

    def _is_called(self, node: BareType) -> bool:
        """Whether a type gets its own function at this place."""
        if id(node) in self._heads:
            return True
        below = parts(node)
        is_small = len(below) <= INLINE_PARTS_MAX and not any(map(parts, below))
        if is_small and not isinstance(node, model.NamedType):
            return False
        return isinstance(node, model.StructType) or self._nest >= NEST_MAX

    @contextmanager
    def _nested(self, head: str) -> Iterator[None]:
        """Writes a loop or branch, within which the codec goes on to a part of the type."""
        with self.block(head):
            self._nest += 1
            yield
            self._nest -= 1

    def _function(self, node: BareType) -> str:
        """Returns the name of the function for a type. `made` writes its source later."""
        if id(node) not in self._functions:
            self._functions[id(node)] = self.name(self._prefix)
            self._called.append(node)
        return self._functions[id(node)]

    def _count_items(self, count: str) -> None:
        """Writes the statements that subtract the items of a list or map from those that the message may still have.

        count: the expression for their number."""
        if self._counts:
            # This test of the count skips the two statements below for empty lists.
            with self.block(f"if {count}:"):
                self.line(f"left[0] -= {count}")
                self.line("if left[0] < 0: raise Irregular")


def joined(parts: list[str]) -> str:
    """Returns the source of an expression that concatenates the values of several bytes expressions."""
    if not parts:
        return 'b""'
    if len(parts) <= SUM_PARTS_MAX:
        return " + ".join(parts)
    return f'b"".join(({", ".join(parts)}))'
