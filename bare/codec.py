"""The classes `Encoder` and `Decoder`, and the functions `encode` and `decode`, which cache codecs.

This module does no I/O."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from bare.compile_decode import compile_decoder
from bare.compile_encode import compile_encoder
from bare.limits import LIMITS_DEFAULT, Limits
from bare.model import BareType, shape_of
from bare.precise import decode_precisely, encode_precisely
from bare.resolve import resolve

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview
"""The Python types that an encoded message can have when it is decoded."""

# `encode` caches the codecs of this many types, and so does `decode`. The least recently used codec is dropped first.
CACHED_TYPES_MAX = 1024


class Encoder(Generic[T]):
    """An encoder that is compiled for one type: a `msgspec.Struct` class or any annotation of `bare.types`.

    Create an encoder once and reuse it, because the creation takes about a millisecond. The creation raises TypeError
    for a type that BARE does not have.

    `encode(value)` returns the message as bytes, or raises EncodeError. It is a compiled function and not a method, so
    that a call needs only one Python stack frame."""

    __slots__ = ("encode", "node")

    encode: Callable[[T], bytes]

    @overload
    def __init__(self: Encoder[T], type_: type[T], limits: Limits = ...) -> None: ...
    @overload
    def __init__(self: Encoder[Any], type_: Any, limits: Limits = ...) -> None: ...
    def __init__(self, type_: Any, limits: Limits = LIMITS_DEFAULT) -> None:
        self.node: BareType = resolve(type_)
        shape = shape_of(self.node)
        careful = functools.partial(encode_precisely, self.node, limits, shape)
        self.encode = compile_encoder(self.node, limits, shape, careful)

    def encode_into(self, value: T, buffer: bytearray) -> None:
        """Encodes a value and appends the message to `buffer`. If it raises EncodeError, `buffer` is unchanged."""
        buffer += self.encode(value)


class Decoder(Generic[T]):
    """A decoder that is compiled for one type, as an `Encoder` is. The creation raises TypeError for a type that BARE
    does not have.

    `decode(data)` returns the value of a whole message. Raises DecodeError, and TypeError if `data` is no `Buffer`."""

    __slots__ = ("_decode_at", "_limits", "_shape", "decode", "node")

    decode: Callable[[Buffer], T]

    @overload
    def __init__(self: Decoder[T], type_: type[T], limits: Limits = ...) -> None: ...
    @overload
    def __init__(self: Decoder[Any], type_: Any, limits: Limits = ...) -> None: ...
    def __init__(self, type_: Any, limits: Limits = LIMITS_DEFAULT) -> None:
        self.node: BareType = resolve(type_)
        self._limits = limits
        self._shape = shape_of(self.node)
        self._decode_at: Callable[[Buffer, int], tuple[Any, int]] | None = None
        self.decode = compile_decoder(self.node, limits, self._shape, self._carefully)

    def decode_prefix(self, data: Buffer, offset: int = 0) -> tuple[T, int]:
        """Decodes the value that starts at `offset`. Returns the value and the offset after the value.

        Bytes may follow the value. The limit on the size of a message applies to the whole `data`. Raises DecodeError,
        whose offsets count from the start of `data`, and ValueError for an offset outside of `data`."""
        if not 0 <= offset <= len(data):
            raise ValueError(f"offset {offset} is outside of a buffer of {len(data)} bytes")
        if self._decode_at is None:
            self._decode_at = compile_decoder(self.node, self._limits, self._shape, self._carefully, is_prefix=True)
        return self._decode_at(data, offset)

    def _carefully(self, data: Buffer, offset: int | None = None) -> Any:
        """Decodes what compiled functions cannot. offset: that of `decode_prefix`; None: decodes a whole message."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"wants bytes, bytearray or memoryview, not {type(data).__name__}")
        if type(data) is not bytes:
            return self.decode(bytes(data)) if offset is None else self.decode_prefix(bytes(data), offset)
        found = decode_precisely(self.node, self._limits, self._shape, data, offset or 0, whole=offset is None)
        return found[0] if offset is None else found


_encoder = functools.lru_cache(maxsize=CACHED_TYPES_MAX)(Encoder)
_decoder = functools.lru_cache(maxsize=CACHED_TYPES_MAX)(Decoder)


def encode(value: Any, type_: Any = None) -> bytes:
    """Encodes a value with the default limits and returns the message.

    type_: the type of the value. None means the class of the value, which works for structs, enums and plain scalars
    (an int is encoded as BARE's int). A list or dict needs its annotation as `type_`.
    Raises EncodeError, and TypeError for a type that BARE does not have."""
    chosen: Any = type(value) if type_ is None else type_
    return _encoder(chosen).encode(value)


@overload
def decode(data: Buffer, type_: type[T]) -> T: ...
@overload
def decode(data: Buffer, type_: Any) -> Any: ...
def decode(data: Buffer, type_: Any) -> Any:
    """Decodes a whole message with the default limits and returns the value. Raises DecodeError.

    Raises TypeError if `type_` is a type that BARE does not have, or if `data` is not a `Buffer`."""
    return _decoder(type_).decode(data)
