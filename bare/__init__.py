"""BARE (draft-devault-bare): encoders and decoders, compiled from annotated Python types or from BARE schemas.

The package imports `bare.schema`, which reads the schema language, only when a program uses it.
"""

from typing import TYPE_CHECKING, Any

from bare.codec import Buffer, Decoder, Encoder, decode, encode
from bare.errors import BareError, DecodeError, EncodeError, SchemaError
from bare.limits import Limits
from bare.types import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Data,
    Fixed,
    Int,
    Some,
    Str,
    Tagged,
    UInt,
    Union,
    Void,
)

if TYPE_CHECKING:
    from bare import schema

__all__ = [
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "U8",
    "U16",
    "U32",
    "U64",
    "BareError",
    "Bool",
    "Buffer",
    "Data",
    "DecodeError",
    "Decoder",
    "EncodeError",
    "Encoder",
    "Fixed",
    "Int",
    "Limits",
    "SchemaError",
    "Some",
    "Str",
    "Tagged",
    "UInt",
    "Union",
    "Void",
    "decode",
    "encode",
    "schema",
]


def __getattr__(name: str) -> Any:
    if name == "schema":
        from importlib import import_module

        return import_module("bare.schema")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
