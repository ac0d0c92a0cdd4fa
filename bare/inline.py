"""Decides which types compiled codecs write out in place and which get a function of their own. It writes
nothing.

Writing out is faster; functions keep the source in proportion to the type, whatever the type is.
"""

from __future__ import annotations

from bare.model import (
    BareType,
    BoolType,
    DataType,
    EnumType,
    FixedIntType,
    FloatType,
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
