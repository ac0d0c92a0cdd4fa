"""The common part of the compilers of encoders and decoders: a codec's functions, and the counts that they share.

A compiled codec is `def NAME(…)`, which handles the usual values, or lets `careful` handle the value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bare.errors import Irregular
from bare.inline import counts_items, is_called
from bare.limits import Limits
from bare.model import BareType
from bare.source import Source
from bare.types import Some, Tagged


class Compiler:
    """The base of the writers of codecs, which write Python statements into `source`.

    prefix, arguments: the beginning of the names, and the first arguments, of the functions that a codec calls.
    heads: the result of `cycle_heads`. names: objects to which the source can refer."""

    def __init__(self, prefix: str, arguments: str, limits: Limits, heads: frozenset[int], **names: Any) -> None:
        self.source = Source(Irregular=Irregular, Some=Some, Tagged=Tagged, **names)
        self._prefix = prefix
        self._arguments = arguments
        self._limits = limits
        self._heads = heads
        self._functions: dict[int, str] = {}
        self._called: list[BareType] = []
        self._tables: list[tuple[dict[Any, Any], Any, str]] = []
        self._nest = 0
        self._counts = False
        # The other arguments of every function: the depth, and the number of items that the message may still have.
        self._shared = ""

    @contextmanager
    def codec(self, head: str, arguments: str) -> Iterator[None]:
        """Writes the codec `head(arguments)`. The lines within the context are for usual values, and end with a
        return."""
        with self.source.block(f"def {head}({arguments}):"):
            with self.source.block("try:"):
                yield
            # Call the careful codec after the handler, so that its error does not have this exception as its context.
            with self.source.block("except Exception:"):
                self.source.line("pass")
            self.source.line(f"return careful({arguments})")

    def begin(self, node: BareType) -> None:
        """Writes the statements before those of the root type."""
        self._counts = counts_items(node, self._heads, self._limits)
        self._shared = (", depth" if self._heads else "") + (", left" if self._counts else "")
        if self._heads:
            self.source.line("depth = 0")
        if self._counts:
            self.source.line(f"left = [{self._limits.items_max}]")

    def made(self, head: str) -> Callable[..., Any]:
        """Writes the functions that the codec calls, compiles all functions, and returns the compiled codec."""
        # `_write_body` appends further types to `_called` while this loop runs. Recursion instead of the loop could
        # exhaust the stack for a long chain of types.
        for node in self._called:
            self._nest = 0
            with self.source.block(f"def {self._functions[id(node)]}({self._arguments}{self._shared}):"):
                if id(node) in self._heads:
                    self.source.line("depth += 1")
                    self.source.line(f"if depth > {self._limits.depth_max}: raise Irregular")
                self._write_body(node)
        codec = self.source.made(head)
        for table, key, name in self._tables:
            table[key] = self.source.function(name)
        return codec

    def _write_body(self, node: BareType) -> None:
        """Writes the statements of the function for a type."""
        raise NotImplementedError

    def _is_called(self, node: BareType) -> bool:
        return is_called(node, self._heads, self._nest)

    def _function(self, node: BareType) -> str:
        """Returns the name of the function for a type. `made` writes its source later."""
        if id(node) not in self._functions:
            self._functions[id(node)] = self.source.name(self._prefix)
            self._called.append(node)
        return self._functions[id(node)]

    def _count_items(self, count: str) -> None:
        """Writes the statements that subtract the items of a list or map from those that the message may still have.

        count: the expression for their number."""
        if self._counts:
            # This test of the count skips the two statements below for empty lists.
            with self.source.block(f"if {count}:"):
                self.source.line(f"left[0] -= {count}")
                self.source.line("if left[0] < 0: raise Irregular")
