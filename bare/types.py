"""The annotations that assign BARE types to Python types.

    class PushRequest(msgspec.Struct):
        request_id: bare.UInt
        data: bytes

| BARE              | annotation                                                                         |
|-------------------|------------------------------------------------------------------------------------|
| uint, int         | `UInt`, `Int`; a plain `int` is `Int`                                              |
| u8..u64, i8..i64  | `U8` .. `U64`, `I8` .. `I64`                                                       |
| f32, f64          | `F32`, `F64`; a plain `float` is `F64`                                             |
| bool, str, data   | `bool`, `str`, `bytes`                                                             |
| data[n]           | `Annotated[bytes, Fixed(n)]`                                                       |
| void              | `None`, as a whole message or as a member of a union                               |
| enum              | a subclass of `enum.IntEnum`                                                       |
| optional<T>       | `T | None`; `Some[T] | None` where T itself can be None                            |
| list<T>           | `list[T]`                                                                          |
| list<T>[n]        | `Annotated[list[T], Fixed(n)]`                                                     |
| map<K><V>         | `dict[K, V]`                                                                       |
| union             | `Annotated[A | B, Union({0: A, 1: B})]`; see `Union`                               |
| struct            | a subclass of `msgspec.Struct`; its fields in the order of `__struct_fields__`     |

Metadata of other libraries inside `Annotated` is ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Scalar(msgspec.Struct, frozen=True):
    """The metadata in the annotation of a BARE number type, such as `UInt`. name: the name of the BARE type."""

    name: str


UInt: TypeAlias = Annotated[int, Scalar("uint")]
Int: TypeAlias = Annotated[int, Scalar("int")]
U8: TypeAlias = Annotated[int, Scalar("u8")]
U16: TypeAlias = Annotated[int, Scalar("u16")]
U32: TypeAlias = Annotated[int, Scalar("u32")]
U64: TypeAlias = Annotated[int, Scalar("u64")]
I8: TypeAlias = Annotated[int, Scalar("i8")]
I16: TypeAlias = Annotated[int, Scalar("i16")]
I32: TypeAlias = Annotated[int, Scalar("i32")]
I64: TypeAlias = Annotated[int, Scalar("i64")]
F32: TypeAlias = Annotated[float, Scalar("f32")]
F64: TypeAlias = Annotated[float, Scalar("f64")]
Bool: TypeAlias = bool
Str: TypeAlias = str
Data: TypeAlias = bytes
Void: TypeAlias = None
"""The annotations of the scalar types of BARE; see the table at the top of this module."""


class Fixed(msgspec.Struct, frozen=True):
    """The metadata in the annotation of `bytes` or `list[T]` with a fixed length (data[n], list<T>[n]).

    length: the number of bytes or items."""

    length: int


class Union:
    """The metadata in the annotation of a union: a dict from the tags on the wire to the member types.

    A value of the union is the plain member value, whose exact Python type selects the tag. If two members have the
    same Python type (such as `Int` and `UInt`), use the annotation `Annotated[Tagged, Union({...})]`, and `Tagged`
    values."""

    __slots__ = ("members",)

    def __init__(self, members: Mapping[int, Any]) -> None:
        self.members: tuple[tuple[int, Any], ...] = tuple(members.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Union) and self.members == other.members

    def __hash__(self) -> int:
        return hash(self.members)

    def __repr__(self) -> str:
        return f"Union({dict(self.members)!r})"


class Tagged(msgspec.Struct, frozen=True):
    """A value of a union that has several members with the same Python type. tag: the tag of the member on the wire."""

    tag: int
    value: Any


class Some(msgspec.Struct, Generic[T], frozen=True):
    """A present value of an optional whose item can itself be None.

    `Some(None)` is a present item that is None; plain `None` is an absent item."""

    value: T
