"""Turns what programs naturally pass (text, dictionaries of headers) into what is sent. It sends nothing.

A value that cannot be sent is InvalidArgument, which says what to pass instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import bare
from ockam.address import complete_address
from ockam.errors import InvalidAddress
from ockam.protocol import Protocol
from stream_client.errors import InvalidArgument
from stream_service.extensions import Header

BytesLike: TypeAlias = bytes | bytearray | memoryview | str
"""Data, a key, or the value of a header. Text is sent in UTF-8."""
HeadersLike: TypeAlias = Mapping[str, BytesLike] | Iterable[Header | tuple[str, BytesLike]]
"""Headers in order: a dictionary, or a list of `Header`s and of pairs of name and value, which may repeat a name."""

Q = TypeVar("Q")
A = TypeVar("A")


def to_bytes(value: BytesLike, what: str) -> bytes:
    """`value` as it is sent. what: names it in the error. Raises InvalidArgument."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{what} cannot be written in UTF-8 ({error.reason}); pass bytes") from error
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"{what} is bytes or str, not {type(value).__name__}; encode it first, for example as JSON")


def to_address(address: str) -> str:
    """`host:port` of a node, port 4000 where none was written. Raises InvalidArgument."""
    if not isinstance(address, str):
        raise InvalidArgument(f"the address of a node is a str such as '127.0.0.1:4000', not {type(address).__name__}")
    try:
        return complete_address(address)
    except InvalidAddress as error:
        raise InvalidArgument(str(error)) from error


def to_key(value: BytesLike | None, what: str = "a key") -> bytes | None:
    """`value` as it is sent, or None where there is none. Raises InvalidArgument."""
    return None if value is None else to_bytes(value, what)


def to_headers(headers: HeadersLike) -> Sequence[Header]:
    """`headers` as they are sent, in order. Raises InvalidArgument."""
    if not headers:
        return ()
    if isinstance(headers, Mapping):
        return [_header(name, value) for name, value in headers.items()]
    if isinstance(headers, bytes | str) or not isinstance(headers, Iterable):
        raise InvalidArgument(
            f"headers are a dictionary, or a list of (name, value), not {type(headers).__name__}; "
            'for example {"content-type": "application/json"}'
        )
    return [_from_item(item) for item in headers]


def encoded(protocol: Protocol[Q, A], request: Q) -> bytes:
    """The payload of a request. Raises InvalidArgument where a value in it has the wrong type or size."""
    try:
        return protocol.encode_request(request)
    except bare.EncodeError as error:
        raise InvalidArgument(f"{protocol.name} cannot be sent: {error}") from error


def _from_item(item: Header | tuple[str, BytesLike]) -> Header:
    if isinstance(item, Header):
        return _header(item.name, item.value)
    if isinstance(item, tuple | list) and len(item) == 2:
        return _header(*item)
    raise InvalidArgument(f"a header is (name, value) or a Header, not {item!r}")


def _header(name: str, value: BytesLike) -> Header:
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a header is str, not {type(name).__name__}")
    return Header(name, to_bytes(value, f"the value of the header {name!r}"))
