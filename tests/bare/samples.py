"""Types and vectors that several tests of `bare` share."""

from __future__ import annotations

import enum
import json
import pathlib
from typing import Annotated, Any

import msgspec

import bare

VECTORS = pathlib.Path(__file__).parent.parent / "vectors" / "bare"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / name).read_text())


class AppendixEnum(enum.IntEnum):
    FOO = 0
    BAR = 255
    BUZZ = 256


class AppendixStruct(msgspec.Struct, frozen=True):
    foo: bare.UInt
    bar: bare.Int
    buzz: str


# The types of appendix_values.json and decode_matrix.json by the names that they have there.
TYPES: dict[str, Any] = {
    "uint": bare.UInt,
    "int": bare.Int,
    "u32": bare.U32,
    "i16": bare.I16,
    "f64": bare.F64,
    "bool": bool,
    "str": str,
    "data": bytes,
    "data[16]": Annotated[bytes, bare.Fixed(16)],
    "enum": AppendixEnum,
    "optional<u8>": bare.U8 | None,
    "optional<u32>": bare.U32 | None,
    "list<u8>": list[bare.U8],
    "list<str>": list[str],
    "list<uint>[10]": Annotated[list[bare.UInt], bare.Fixed(10)],
    "map<u32><str>": dict[bare.U32, str],
    "map<str><u8>": dict[str, bare.U8],
    "union": Annotated[bare.Tagged, bare.Union({0: bare.Int, 255: bare.UInt, 256: str})],
    "struct": AppendixStruct,
}


class Status(enum.IntEnum):
    OK = 0
    ERROR = 1


class CreateStreamRequest(msgspec.Struct, frozen=True):
    stream_name: str | None


class Init(msgspec.Struct, frozen=True):
    stream_name: str


class PushRequest(msgspec.Struct, frozen=True, gc=False):
    request_id: bare.UInt
    data: bytes


class PushConfirm(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    status: Status
    index: bare.UInt


class PullRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    index: bare.UInt
    limit: bare.UInt


class StreamMessage(msgspec.Struct, frozen=True):
    index: bare.UInt
    data: bytes


class PullResponse(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    messages: list[StreamMessage]


class Tree(msgspec.Struct, frozen=True):
    """A type that contains itself."""

    name: str
    children: list[Tree]
    left: Tree | None = None


class Address(msgspec.Struct, frozen=True):
    street: Annotated[list[str], bare.Fixed(4)]
    city: str
    state: str
    country: str


class Order(msgspec.Struct, frozen=True):
    order_id: bare.I64
    quantity: bare.I32


class Department(enum.IntEnum):
    ACCOUNTING = 0
    ADMINISTRATION = 1
    CUSTOMER_SERVICE = 2
    DEVELOPMENT = 3
    JSMITH = 99


class Customer(msgspec.Struct, frozen=True):
    name: str
    email: str
    address: Address
    orders: list[Order]
    metadata: dict[str, bytes]


class Employee(msgspec.Struct, frozen=True):
    name: str
    email: str
    address: Address
    department: Department
    hire_date: str
    public_key: Annotated[bytes, bare.Fixed(128)] | None
    metadata: dict[str, bytes]


# The Person of the go-bare example; its third member, a terminated employee, is void.
PERSON: Any = Annotated[Customer | Employee | None, bare.Union({0: Customer, 1: Employee, 2: None})]
