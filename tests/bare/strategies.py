"""Hypothesis strategies: schemas of any shape, and values of any type."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from bare import schema
from bare.model import (
    INT_MAX,
    INT_MIN,
    PRIMITIVES,
    UINT_MAX,
    BareType,
    BoolType,
    DataType,
    EnumType,
    FixedIntType,
    FloatType,
    ListType,
    MapType,
    NamedType,
    OptionalType,
    StrType,
    StructType,
    UnionType,
    VarintType,
    VoidType,
)
from bare.schema import ast
from bare.types import Some, Tagged

KEY_PRIMITIVES = sorted(set(PRIMITIVES) - {"f32", "f64", "void"})
PART_PRIMITIVES = sorted(set(PRIMITIVES) - {"void"})
TAGS = st.integers(0, 300) | st.integers(0, UINT_MAX)
# How often a type that contains itself is entered before its shortest values are chosen.
RECURSION_MAX = 3


def ascending(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(TAGS, min_size=count, max_size=count, unique=True).map(sorted)


@st.composite
def enums(draw: st.DrawFn) -> ast.Enum:
    numbers = draw(st.integers(1, 4).flatmap(ascending))
    return ast.Enum(tuple(ast.EnumMember(f"M{index}", number) for index, number in enumerate(numbers)))


def keys(names: tuple[str, ...]) -> st.SearchStrategy[ast.Type]:
    """Types that can be keys; `names` are those of enums."""
    lengths = st.integers(1, 5).map(ast.FixedData)
    found: st.SearchStrategy[ast.Type] = st.sampled_from(KEY_PRIMITIVES).map(ast.Primitive) | lengths | enums()
    return found | st.sampled_from(names).map(ast.Name) if names else found


@st.composite
def unions(draw: st.DrawFn, parts: st.SearchStrategy[ast.Type]) -> ast.UnionNode:
    members = draw(st.lists(parts | st.just(ast.Primitive("void")), min_size=1, max_size=4, unique=True))
    tags = draw(ascending(len(members)))
    return ast.UnionNode(tuple(ast.UnionMember(part, tag) for part, tag in zip(members, tags, strict=True)))


@st.composite
def structs(draw: st.DrawFn, parts: st.SearchStrategy[ast.Type]) -> ast.Struct:
    names = draw(st.lists(st.sampled_from(FIELD_NAMES), min_size=1, max_size=5, unique=True))
    return ast.Struct(tuple(ast.Field(name, draw(parts)) for name in names))


# Some are Python keywords, some are names of the compiled source, some are words of the schema language.
FIELD_NAMES = [
    "a",
    "request_id",
    "data",
    "type",
    "class",
    "size",
    "start",
    "value",
    "depth",
    "self",
    "c1",
    "v1",
]


@functools.cache
def types(names: tuple[str, ...], enum_names: tuple[str, ...], later: tuple[str, ...]) -> st.SearchStrategy[ast.Type]:
    """Any type but void. `names` may stand anywhere, `later` (defined here or further on) behind a count."""
    leaves: st.SearchStrategy[ast.Type] = (
        st.sampled_from(PART_PRIMITIVES).map(ast.Primitive) | st.integers(1, 5).map(ast.FixedData) | enums()
    )
    if names:
        leaves |= st.sampled_from(names).map(ast.Name)
    if later:
        loose = st.sampled_from(later).map(ast.Name)
        leaves |= loose.map(ast.Optional) | loose.map(ast.List)
        leaves |= st.builds(ast.Map, keys(enum_names), loose)

    def grown(parts: st.SearchStrategy[ast.Type]) -> st.SearchStrategy[ast.Type]:
        return (
            parts.map(ast.Optional)
            | st.builds(ast.List, parts, st.none() | st.integers(1, 3))
            | st.builds(ast.Map, keys(enum_names), parts)
            | unions(parts)
            | structs(parts)
        )

    return st.recursive(leaves, grown, max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> ast.Document:
    """Schemas of one to four definitions, which may contain each other."""
    count = draw(st.integers(1, 4))
    definitions: dict[str, ast.Definition] = {}
    enum_names: list[str] = []
    for index in range(count):
        later = tuple(f"T{other}" for other in range(index, count))
        type_ = draw(types(tuple(definitions), tuple(enum_names), later))
        if isinstance(type_, ast.Enum):
            enum_names.append(f"T{index}")
        definitions[f"T{index}"] = ast.Definition(f"T{index}", type_)
    return ast.Document(definitions)


@functools.cache
def schemas() -> st.SearchStrategy[str]:
    return documents().map(schema.format)


def values(node: BareType, entered: int = 0) -> st.SearchStrategy[Any]:
    """Values of a type. `entered` counts types that may contain themselves on the way here."""
    ending = entered > RECURSION_MAX
    size = 0 if ending else 3
    match node:
        case VarintType(signed=signed):
            small = st.integers(-200, 20000) if signed else st.integers(0, 20000)
            return small | (st.integers(INT_MIN, INT_MAX) if signed else st.integers(0, UINT_MAX))
        case FixedIntType(low=low, high=high):
            return st.integers(low, high)
        case FloatType(size=width):
            return st.floats(width=32 if width == 4 else 64)
        case BoolType():
            return st.booleans()
        case StrType():
            return st.text(max_size=6)
        case DataType(length=None):
            return st.binary(max_size=6) | st.integers(0, 200).map(bytes)
        case DataType(length=length):
            return st.binary(min_size=length or 0, max_size=length)
        case VoidType():
            return st.none()
        case EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case OptionalType(item=item, wrapped=wrapped):
            if ending:
                return st.none()
            present = values(item, entered + 1)
            return st.none() | (present.map(Some) if wrapped else present)
        case ListType(item=item, length=None):
            return st.lists(values(item, entered + 1), max_size=size) if size else st.just([])
        case ListType(item=item, length=count):
            return st.lists(values(item, entered + 1), min_size=count or 0, max_size=count)
        case MapType(key=key, value=value):
            if not size:
                return st.just({})
            return st.dictionaries(values(key, entered), values(value, entered + 1), max_size=size)
        case UnionType(members=members, tagged=tagged):
            if ending:
                members = tuple(sorted(members, key=lambda member: not is_leaf(member[1])))[:1]
            inner = [values(member, entered + 1) for _, member in members]
            if not tagged:
                return st.one_of(inner)
            return st.one_of(
                [st.builds(Tagged, st.just(tag), part) for (tag, _), part in zip(members, inner, strict=True)]
            )
        case StructType(cls=struct, fields=fields):
            return st.builds(struct, *(values(item, entered + 1) for _, item in fields))
        case NamedType(target=target):
            assert target is not None
            return values(target, entered + 1)


def is_leaf(node: BareType) -> bool:
    """Whether values of a type end at once, if only they are chosen so."""
    return not isinstance(node, UnionType | StructType | NamedType)
