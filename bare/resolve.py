"""Converts Python annotations to the type model (`bare.model`). Schema texts are not handled here.

A type that BARE cannot express is a mistake of the caller, not of a peer, so it raises TypeError with the class and the
field."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec

from bare import model
from bare.model import LENGTH_MAX, PRIMITIVES, UINT_MAX, BareType, needs_some, needs_tags
from bare.types import Fixed, Scalar, Some, Tagged, Union

# The types that the key of a map can have (section 2).
KEYS = model.VarintType | model.FixedIntType | model.BoolType | model.StrType | model.DataType | model.EnumType
# The name of the BARE type for each plain Python type.
PLAIN = {int: "int", float: "f64", bool: "bool", str: "str", bytes: "data", type(None): "void"}


def resolve(annotation: Any) -> BareType:
    """Returns the model of an annotation, or a model unchanged. Raises TypeError for a type that BARE cannot express.

    It is not checked whether each struct has a finite value: `shape_of` does that."""
    if isinstance(annotation, BareType):
        return annotation
    return _Resolver().node(annotation)


def enum_type(cls: type[enum.IntEnum]) -> model.EnumType:
    """Returns the model of an enum. Raises TypeError without members, and for a value that is no u64 (section 2)."""
    by_value = {member.value: member for member in cls}
    if not by_value:
        raise TypeError(f"enum {cls.__name__} has no members")
    for value, member in by_value.items():
        if not 0 <= value <= UINT_MAX:
            raise TypeError(f"{cls.__name__}.{member.name} = {value} is not an unsigned 64-bit number")
    return model.EnumType(cls, by_value)


class _Resolver:
    """A converter of one annotation, and of all annotations inside it, to the type model.

    `_structs` has the model of every struct class found so far, including classes whose fields are not converted yet.
    """

    def __init__(self) -> None:
        self._structs: dict[type[Any], model.StructType] = {}
        self._enums: dict[type[enum.IntEnum], model.EnumType] = {}

    def node(self, annotation: Any) -> BareType:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            return self._annotated(annotation)
        if origin in (typing.Union, types.UnionType):
            return self._optional(annotation)
        if origin is list:
            return model.ListType(self._item(typing.get_args(annotation)[0]))
        if origin is dict:
            key, value = (self._item(part) for part in typing.get_args(annotation))
            if not isinstance(key, KEYS):
                raise TypeError("the key of a map must be an enum or a primitive type, and not a float or None")
            return model.MapType(key, value)
        if annotation is None or (isinstance(annotation, type) and annotation in PLAIN):
            return PRIMITIVES[PLAIN[type(None) if annotation is None else annotation]]
        if isinstance(annotation, type) and issubclass(annotation, enum.IntEnum):
            return self._enums.setdefault(annotation, enum_type(annotation))
        if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            if annotation in (Tagged, Some):
                raise TypeError(f"{annotation.__name__} needs its types: see the table in bare/types.py")
            return self._struct(annotation)
        raise TypeError(f"{annotation!r} has no BARE type: see the table in bare/types.py")

    def _item(self, annotation: Any) -> BareType:
        """Returns the model of a part of another type. Raises TypeError for void (draft, section 2)."""
        node = self.node(annotation)
        if isinstance(node, model.VoidType):
            raise TypeError("None (void) may only be a member of a union, or a whole message")
        return node

    def _annotated(self, annotation: Any) -> BareType:
        base, *metadata = typing.get_args(annotation)
        ours = [item for item in metadata if isinstance(item, Scalar | Fixed | Union)]
        if len(ours) > 1:
            raise TypeError(f"{annotation!r} has more than one annotation of bare")
        match ours:
            case []:
                return self.node(base)
            case [Scalar(name=name)]:
                return PRIMITIVES[name]
            case [Fixed(length=length)]:
                return self._fixed(base, length)
            case [Union() as union]:
                return self._union(base, union)
        raise AssertionError(ours)

    def _fixed(self, base: Any, length: int) -> BareType:
        if type(length) is not int or not 1 <= length <= LENGTH_MAX:
            raise TypeError(f"a fixed length must be from 1 to {LENGTH_MAX}, not {length!r}")
        match self.node(base):
            case model.DataType(length=None):
                return model.DataType(length)
            case model.ListType(item=item, length=None):
                return model.ListType(item, length)
        raise TypeError(f"Fixed belongs to bytes or list[T], not to {base!r}")

    def _union(self, base: Any, union: Union) -> BareType:
        members = []
        for tag, member in union.members:
            if type(tag) is not int or not 0 <= tag <= UINT_MAX:
                raise TypeError(f"union tag {tag!r} is not an unsigned 64-bit number")
            members.append((tag, self.node(member)))
        if not members:
            raise TypeError("a union must have at least one member")
        ordered = tuple(members)
        if base is Tagged:
            return model.UnionType(ordered, tagged=True)
        if needs_tags(ordered):
            raise TypeError(f"members of {union!r} have the same Python type: annotate bare.Tagged instead of {base!r}")
        return model.UnionType(ordered, tagged=False)

    def _optional(self, annotation: Any) -> BareType:
        rest = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(rest) != 1 or len(rest) == len(typing.get_args(annotation)):
            raise TypeError(f"{annotation!r} needs its tags: Annotated[..., bare.Union({{0: ..., 1: ...}})]")
        if typing.get_origin(rest[0]) is Some:
            return model.OptionalType(self._item(typing.get_args(rest[0])[0]), wrapped=True)
        item = self._item(rest[0])
        if needs_some(item):
            raise TypeError(f"{annotation!r}: the item can be None itself, so present values need bare.Some[...]")
        return model.OptionalType(item)

    def _struct(self, cls: type[msgspec.Struct]) -> BareType:
        if cls in self._structs:
            return self._structs[cls]
        # The struct is known before its fields are converted, so that it can contain itself.
        struct = self._structs[cls] = model.StructType(cls)
        if not cls.__struct_fields__:
            raise TypeError(f"{cls.__name__} has no fields: a struct must have at least one")
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except NameError as error:
            raise TypeError(f"{cls.__name__}: {error}; annotations must name things of its module") from error
        fields = []
        # The error of a field is raised again with the path of the field.
        for name in cls.__struct_fields__:
            try:
                fields.append((name, self._item(hints[name])))
            except TypeError as error:
                raise TypeError(f"{cls.__name__}.{name}: {error}") from error
        struct.fields = tuple(fields)
        struct.positional = len(cls.__match_args__)
        return struct
