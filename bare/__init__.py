"""BARE (draft-devault-bare): compiled encoders and decoders for annotated Python types, and the schema language of
BARE."""

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
