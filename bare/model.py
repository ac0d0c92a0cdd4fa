"""The type model: annotations and schemas are converted to this model, and every codec is compiled from this model.

A type is a graph of the nodes in this module. A cycle in the graph always contains a `StructType` or a `NamedType`,
whose parts can be set after its creation. Two nodes are equal only if they are the same object."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from bare.types import Some, Tagged

UINT_MAX = 2**64 - 1
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
# Our own limit: a fixed length that does not fit into a u32 is refused, as in bare-ts.
LENGTH_MAX = 2**32 - 1


class Unknown:
    """The placeholder in the result of `python_types` for a type that is still being built."""


class VarintType(msgspec.Struct, eq=False):
    """The BARE type uint, or int if `signed`: a number of variable length on the wire, with at most 64 bits."""

    signed: bool


class FixedIntType(msgspec.Struct, eq=False):
    """One of the BARE types u8 .. u64 and i8 .. i64, with values from `low` to `high` and `size` bytes.

    code: its format letter in Python's `struct` module."""

    name: str
    code: str
    size: int
    low: int
    high: int


class FloatType(msgspec.Struct, eq=False):
    """One of the BARE types f32 and f64, of `size` bytes. code: its format letter in Python's `struct` module."""

    name: str
    code: str
    size: int


Number = FixedIntType | FloatType
"""The types of numbers that take a fixed number of bytes."""


class BoolType(msgspec.Struct, eq=False):
    """The BARE type bool."""


class StrType(msgspec.Struct, eq=False):
    """The BARE type str."""


class DataType(msgspec.Struct, eq=False):
    """The BARE type data, or data[length] if `length` is not None. length: the fixed number of bytes."""

    length: int | None = None


class VoidType(msgspec.Struct, eq=False):
    """The BARE type void, whose value takes no bytes on the wire."""


class EnumType(msgspec.Struct, eq=False):
    """A BARE enum. cls: the Python enum. by_value: the members of `cls`, by their values on the wire."""

    cls: type[enum.IntEnum]
    by_value: dict[int, enum.IntEnum]


class OptionalType(msgspec.Struct, eq=False):
    """The BARE type optional<item>. wrapped: whether a present value is in a `Some`, because the item can be None."""

    item: BareType
    wrapped: bool = False


class ListType(msgspec.Struct, eq=False):
    """The BARE type list<item>, or list<item>[length] if `length` is not None."""

    item: BareType
    length: int | None = None


class MapType(msgspec.Struct, eq=False):
    key: BareType
    value: BareType


class UnionType(msgspec.Struct, eq=False):
    """A BARE union. members: the pairs (tag, type), in order. tagged: whether its values are `Tagged` objects."""

    members: tuple[tuple[int, BareType], ...]
    tagged: bool


class StructType(msgspec.Struct, eq=False):
    """A BARE struct. cls: the Python class. fields: the pairs (name, type), in wire order.

    positional: how many fields, from the first on, are positional arguments of the class."""

    cls: type[Any]
    fields: tuple[tuple[str, BareType], ...] = ()
    positional: int = 0


class NamedType(msgspec.Struct, eq=False):
    """A reference by name to a type that contains itself and is not a struct.

    target: the type with this name; None while the type is being built.
    kinds: the Python types that its values may have, or `Unknown`. It is used only while `target` is None."""

    name: str
    kinds: frozenset[type] = frozenset((Unknown,))
    target: BareType | None = None


BareType = (
    VarintType
    | FixedIntType
    | FloatType
    | BoolType
    | StrType
    | DataType
    | VoidType
    | EnumType
    | OptionalType
    | ListType
    | MapType
    | UnionType
    | StructType
    | NamedType
)


def _fixed_int(name: str, code: str, size: int) -> FixedIntType:
    bits = size * 8
    low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return FixedIntType(name, code, size, low, high)


# The primitive types (types without parts), by their names in a schema (section 2 of the draft).
PRIMITIVES: dict[str, BareType] = {
    "uint": VarintType(signed=False),
    "int": VarintType(signed=True),
    "u8": _fixed_int("u8", "B", 1),
    "u16": _fixed_int("u16", "H", 2),
    "u32": _fixed_int("u32", "I", 4),
    "u64": _fixed_int("u64", "Q", 8),
    "i8": _fixed_int("i8", "b", 1),
    "i16": _fixed_int("i16", "h", 2),
    "i32": _fixed_int("i32", "i", 4),
    "i64": _fixed_int("i64", "q", 8),
    "f32": FloatType("f32", "f", 4),
    "f64": FloatType("f64", "d", 8),
    "bool": BoolType(),
    "str": StrType(),
    "data": DataType(),
    "void": VoidType(),
}


def parts(node: BareType) -> tuple[BareType, ...]:
    match node:
        case OptionalType(item=item) | ListType(item=item):
            return (item,)
        case MapType(key=key, value=value):
            return (key, value)
        case UnionType(members=members):
            return tuple(member for _, member in members)
        case StructType(fields=fields):
            return tuple(item for _, item in fields)
        case NamedType(target=target):
            return () if target is None else (target,)
        case _:
            return ()


def resolved(node: BareType) -> BareType:
    while isinstance(node, NamedType):
        assert node.target is not None, f"{node.name} was never filled"
        node = node.target
    return node


_PYTHON_TYPES: dict[type, tuple[type, ...]] = {
    VarintType: (int,),
    FixedIntType: (int,),
    FloatType: (float,),
    BoolType: (bool,),
    StrType: (str,),
    DataType: (bytes, bytearray, memoryview),
    VoidType: (type(None),),
    ListType: (list,),
    MapType: (dict,),
}


def python_types(node: BareType) -> frozenset[type]:
    """Returns the exact Python types that values of a type can have; with `Unknown` while the type is being built."""
    found: set[type] = set()
    # An explicit stack is used instead of recursion, so that no chain of unions is too deep.
    stack, seen = [node], {id(node)}
    while stack:
        top = stack.pop()
        below: tuple[BareType, ...] = ()
        match top:
            case OptionalType(item=item, wrapped=wrapped):
                found.add(type(None))
                if wrapped:
                    found.add(Some)
                else:
                    below = (item,)
            case UnionType(members=members, tagged=tagged):
                if tagged:
                    found.add(Tagged)
                else:
                    below = tuple(member for _, member in members)
            case NamedType(target=None, kinds=kinds):
                found |= kinds
            case NamedType():
                below = parts(top)
            case EnumType(cls=cls) | StructType(cls=cls):
                found.add(cls)
            case _:
                found.update(_PYTHON_TYPES[type(top)])
        for part in below:
            if id(part) not in seen:
                seen.add(id(part))
                stack.append(part)
    return frozenset(found)


def needs_some(item: BareType) -> bool:
    """Whether an optional needs `Some` for present values: the item can be None, or its type is still being built."""
    return not python_types(item).isdisjoint((type(None), Unknown))


def needs_tags(members: tuple[tuple[int, BareType], ...]) -> bool:
    """Whether values of a union must state their tags, because two members can have the same Python type.

    members: the pairs (tag, type of the member). The result is also True if a member type is still being built."""
    seen: set[type] = set()
    for _, member in members:
        kinds = python_types(member)
        if Unknown in kinds or not kinds.isdisjoint(seen):
            return True
        seen |= kinds
    return False


class Shape(NamedTuple):
    """Facts about the types that a root type reaches, by the ids (`id()`) of these types.

    heads: the types that contain themselves: at least one of every cycle.
    least: the size of the smallest value of each type, in bytes. It is 0 only for void.
    containers: how many lists and maps of variable length one message can have: none, one, or 2 for any larger number.
    """

    heads: frozenset[int]
    least: dict[int, int]
    containers: int


def shape_of(root: BareType) -> Shape:
    """Returns the facts about a type. Raises TypeError for a struct without a finite value."""
    heads: set[int] = set()
    # All types, each after its parts, except a part whose own parts lead back to it.
    order: dict[int, BareType] = {}
    # Use an explicit stack instead of recursion, so that no schema is too deep for the walk.
    stack: list[tuple[BareType, Iterator[BareType]]] = [(root, iter(parts(root)))]
    on_path = {id(root)}
    met = [root]
    while stack:
        node, rest = stack[-1]
        # A node leaves the path when all types below it are done. A type that is met again on the path closes a cycle.
        below = next(rest, None)
        if below is None:
            stack.pop()
            on_path.discard(id(node))
            order[id(node)] = node
        elif id(below) in on_path:
            heads.add(id(below))
        elif id(below) not in order:
            on_path.add(id(below))
            met.append(below)
            stack.append((below, iter(parts(below))))
    above: dict[int, dict[int, BareType]] = {key: {} for key in order}
    for key, node in order.items():
        for part in parts(node):
            above[id(part)][key] = node
    least = dict.fromkeys(order, math.inf)
    waiting = order
    while waiting:
        # A part of a cycle may have its size only after the whole. So with cycles, the types that have a part with a
        # new size are looked at again. Not all types: a schema can need as many rounds as it has types.
        again: dict[int, BareType] = {}
        for key, node in waiting.items():
            size = _least(node, [least[id(part)] for part in parts(node)])
            if size < least[key]:
                least[key] = size
                again |= above[key] if heads else {}
        waiting = again
    containers: dict[int, int] = {}
    for node in order.values():
        inside = sum([containers.get(id(part), 0) for part in parts(node)])
        match node:
            case MapType() | ListType(length=None):
                inside = 1 + 2 * inside
            case ListType():
                inside = 2 * inside
        containers[id(node)] = min(2, inside)
    # The order of the first uses, so that the error names the struct that a reader meets first.
    for node in met:
        if isinstance(node, StructType) and least[id(node)] == math.inf:
            raise TypeError(f"{node.cls.__name__} contains itself without end: make a field optional, a list or a map")
    sizes = {key: int(size) for key, size in least.items()}
    return Shape(frozenset(heads), sizes, containers[id(root)])


def _least(node: BareType, below: list[float]) -> float:
    """Returns the size of the smallest value of a type. below: the sizes for its parts; infinite if unknown."""
    match node:
        case FixedIntType(size=size) | FloatType(size=size):
            return size
        case VoidType():
            return 0
        case DataType(length=int(length)):
            return length
        case ListType(length=int(length)):
            return max(1, length * below[0])
        case UnionType():
            return 1 + min(below)
        case StructType() | NamedType():
            # Python cannot add an infinite float to a number that exceeds every float.
            return math.inf if math.inf in below else max(1, sum(below))
        case _:
            return 1
