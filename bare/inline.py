"""Decides the form of compiled codecs: which types are inlined, and whether the items of lists and maps are counted.

Inlined code is faster; functions keep the size of the source proportional to the size of the type. This module writes
no source. The parameters `heads` have the ids of types that contain themselves (`cycle_heads`)."""

from __future__ import annotations

from bare import model
from bare.limits import Limits
from bare.model import BareType, parts

# A type inside this many loops and branches of one function gets its own function, except an inlined type
# (`is_inlined`): Python allows at most 20 nested loops.
NEST_MAX = 3
# A type with at most this many parts, all of them leaves (types without parts), is inlined where it is used. Every
# other struct gets its own function.
INLINE_PARTS_MAX = 8

# A union with more members than this is read and written through a table of functions. For Python's compiler, each
# branch of an `elif` chain is one more nesting level, and the compiler fails at a few thousand levels.
CHAIN_MEMBERS_MAX = 32

LEAVES = (
    model.VarintType
    | model.FixedIntType
    | model.FloatType
    | model.BoolType
    | model.StrType
    | model.DataType
    | model.VoidType
    | model.EnumType
)


def is_inlined(node: BareType, heads: frozenset[int]) -> bool:
    """Whether a type is always inlined: it has at most INLINE_PARTS_MAX parts, and these have no parts of their own."""
    below = parts(node)
    return (
        len(below) <= INLINE_PARTS_MAX
        and id(node) not in heads
        and not isinstance(node, model.NamedType)
        and all(isinstance(part, LEAVES) for part in below)
    )


def is_called(node: BareType, heads: frozenset[int], nest: int) -> bool:
    """Whether a type gets its own function. nest: the number of loops and branches around its use."""
    if is_inlined(node, heads):
        return False
    return id(node) in heads or isinstance(node, model.StructType) or nest >= NEST_MAX


def counts_items(root: BareType, heads: frozenset[int], limits: Limits) -> bool:
    """Whether a codec of the type `root` must count the items of all lists and maps of a message together.

    Counting is needless if every message has at most one list or map, and the limit of a single list or map is at most
    `Limits.items_max`."""
    above: dict[int, list[int]] = {}
    containers: list[int] = []
    repeated: set[int] = set()
    # An explicit stack is used instead of recursion, so that no schema is too deep.
    stack, seen = [root], {id(root)}
    while stack:
        node = stack.pop()
        if isinstance(node, model.MapType) or (isinstance(node, model.ListType) and node.length is None):
            containers.append(id(node))
        for part in parts(node):
            if isinstance(node, model.ListType | model.MapType) or id(part) in above:
                repeated.add(id(part))
            above.setdefault(id(part), []).append(id(node))
            if id(part) not in seen:
                seen.add(id(part))
                stack.append(part)
    if len(containers) != 1 or heads:
        return bool(containers)
    # A type with only one list or map can still have many lists in a message, if the list or a type that contains it is
    # used in several places.
    holding = {containers[0]}
    waiting = [containers[0]]
    while waiting:
        for holder in above.get(waiting.pop(), ()):
            if holder not in holding:
                holding.add(holder)
                waiting.append(holder)
    return not holding.isdisjoint(repeated) or max(limits.list_items_max, limits.map_entries_max) > limits.items_max
