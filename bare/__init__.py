"""BARE (draft-devault-bare): encoders and decoders, compiled from annotated Python types or from BARE schemas."""

import companion as _companion  # noqa: F401 - first, so that compiled modules are found
from bare import schema
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
