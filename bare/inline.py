"""Decides the form of compiled codecs: which types are written out in place and which get a function of their own,
which unions are looked up in a table, and whether items are counted. It writes nothing.

Writing out is faster; functions keep the source in proportion to the type, whatever the type is.
"""

from __future__ import annotations

from bare.limits import Limits
from bare.model import (
    BareType,
    BoolType,
    DataType,
    EnumType,
    FixedIntType,
    FloatType,
    ListType,
    MapType,
    NamedType,
    StrType,
    StructType,
    VarintType,
    VoidType,
    parts,
)

# A type nested deeper than this in one function gets a function of its own: Python nests at most 20 loops.
NEST_MAX = 3
# A type of at most so many parts, all of them leaves, is written out where it is used; any other struct is a
# call.
INLINE_PARTS_MAX = 8

# A union of more members is read and written through a table of functions: a chain of `elif` is nested as deep as it is
# long for Python's compiler, which gives up at some thousand branches.
CHAIN_MEMBERS_MAX = 32

LEAVES = VarintType | FixedIntType | FloatType | BoolType | StrType | DataType | VoidType | EnumType


def is_inlined(node: BareType, heads: frozenset[int]) -> bool:
    """Whether a type is always written out where it is used: a leaf, or few parts that are all leaves."""
    below = parts(node)
    return (
        len(below) <= INLINE_PARTS_MAX
        and id(node) not in heads
        and not isinstance(node, NamedType)
        and all(isinstance(part, LEAVES) for part in below)
    )


def is_called(node: BareType, heads: frozenset[int], nest: int) -> bool:
    """Whether a type gets a function of its own, rather than being written out `nest` levels down."""
    if is_inlined(node, heads):
        return False
    return id(node) in heads or isinstance(node, StructType) or nest >= NEST_MAX


def counts_items(root: BareType, heads: frozenset[int], limits: Limits) -> bool:
    """Whether a codec of the type `root` has to count items against `Limits.items_max`.

    A type with one list or map, of which a message holds one at most, is bounded by the limit of that list or map.
    """
    above: dict[int, list[int]] = {}
    containers: list[int] = []
    repeated: set[int] = set()
    # An explicit stack, so that no schema is too deep.
    stack, seen = [root], {id(root)}
    while stack:
        node = stack.pop()
        if isinstance(node, MapType) or (isinstance(node, ListType) and node.length is None):
            containers.append(id(node))
        for part in parts(node):
            if isinstance(node, ListType | MapType) or id(part) in above:
                repeated.add(id(part))
            above.setdefault(id(part), []).append(id(node))
            if id(part) not in seen:
                seen.add(id(part))
                stack.append(part)
    if len(containers) != 1 or heads:
        return bool(containers)
    # One list or map in the type, and still many in a message, if it or a type around it stands in several places.
    holding = {containers[0]}
    waiting = [containers[0]]
    while waiting:
        for holder in above.get(waiting.pop(), ()):
            if holder not in holding:
                holding.add(holder)
                waiting.append(holder)
    return not holding.isdisjoint(repeated) or max(limits.list_items_max, limits.map_entries_max) > limits.items_max
