"""Converts the values that programs pass to the types of the wire format. A wrong value raises InvalidArgument."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import bare
from ockam.actors.address import complete_address
from ockam.errors import InvalidAddress
from ockam.protocol import Protocol
from stream_client.errors import InvalidArgument
from stream_service.extensions import Before, BeforeIndex, BeforeTime, FromEnd, FromIndex, FromTime, Header, Start

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token
    from ockam.tracing.spans import Tracing

BytesLike: TypeAlias = bytes | bytearray | memoryview | str
"""The type of a message's data, of its key, and of a header's value. Text is sent in UTF-8."""
HeadersLike: TypeAlias = Mapping[str, BytesLike] | Iterable[Header | tuple[str, BytesLike]]
"""The type of a message's headers: a dictionary, or a list of `Header` objects and (name, value) pairs. The order of
the headers is retained. A list can repeat a name."""

StartLike: TypeAlias = int | datetime | FromIndex | FromTime | FromEnd
"""The type of the location where reading begins: an index, a time, or a type of the wire format."""
BeforeLike: TypeAlias = int | datetime | BeforeIndex | BeforeTime
"""The type of a deletion's limit: an index, a time, or a type of the wire format. Messages below it are removed."""

FIRST: Final = FromIndex(0)
"""The location of the earliest stored message."""
LAST: Final = FromEnd(1)
"""The location of the latest stored message."""
NEW: Final = FromEnd(0)
"""The location after the latest stored message, so that only messages stored from now on are read."""

NAMES = {
    "client_id": "the name of a consumer",
    "limit": "the size of a page",
    "partition": "the number of a partition",
    "partitions": "the number of partitions",
    "prefix": "the name of a stream",
    "stream_name": "the name of a stream",
    "wait_ms": "wait_s",
}
"""The names in errors for the fields of messages that a program knows under another name."""

SERVICE = "stream-client"
"""The name of a client in its spans, unless OTEL_SERVICE_NAME gives another one."""

Q = TypeVar("Q")
A = TypeVar("A")


def to_bytes(value: BytesLike, what: str) -> bytes:
    """Converts text or any bytes-like value to the bytes that are sent. `what` names the argument in errors. Raises
    InvalidArgument for any other type, and for text that cannot be encoded in UTF-8."""
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
    """Returns a node's address as `host:port`, with the default port 4000. Raises InvalidArgument."""
    if not isinstance(address, str):
        raise InvalidArgument(f"the address of a node is a str such as '127.0.0.1:4000', not {type(address).__name__}")
    try:
        return complete_address(address)
    except InvalidAddress as error:
        raise InvalidArgument(str(error)) from error


def to_key(value: BytesLike | None, what: str = "a key") -> bytes | None:
    """Converts a message's key to bytes, and None (no key) to None. Raises InvalidArgument for a wrong type."""
    return None if value is None else to_bytes(value, what)


def to_headers(headers: HeadersLike) -> Sequence[Header]:
    """Converts headers to a list of `Header` objects in the same order. Raises InvalidArgument for a wrong type."""
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
    """Encodes a request as a payload. Raises InvalidArgument if a value in the request has the wrong type or size."""
    try:
        return protocol.encode_request(request)
    except bare.EncodeError as error:
        raise InvalidArgument(_in_words(error)) from error


def start_of(start: StartLike) -> Start:
    """Converts the location where reading begins to a type of the wire format. Raises InvalidArgument for any other
    type, and for a time without a time zone."""
    if isinstance(start, int):
        return FromIndex(start)
    if isinstance(start, datetime):
        return FromTime(microseconds(start))
    if isinstance(start, FromIndex | FromTime | FromEnd):
        return start
    given = type(start).__name__
    raise InvalidArgument(f"reading begins at an index, a time, FIRST, LAST or NEW, not at a {given}")


def before_of(before: BeforeLike) -> Before:
    """Converts the limit of a deletion to a type of the wire format. Raises InvalidArgument as `start_of` does."""
    if isinstance(before, int):
        return BeforeIndex(before)
    if isinstance(before, datetime):
        return BeforeTime(microseconds(before))
    if isinstance(before, BeforeIndex | BeforeTime):
        return before
    raise InvalidArgument(f"what to delete is before an index or a time, not before a {type(before).__name__}")


def microseconds(time: datetime) -> int:
    """Returns the exact number of microseconds from 1970 to `time`. Raises InvalidArgument if it has no time zone."""
    if time.tzinfo is None:
        raise InvalidArgument(f"{time.isoformat()} has no time zone: say which one is meant, for example UTC")
    since = time - datetime.fromtimestamp(0, time.tzinfo)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def check_tls(tls: Tls | None) -> None:
    """Reads the files of the settings. Raises InvalidArgument if one of them cannot be used."""
    if tls is None:
        return
    from ockam.identity.tls import TlsFilesError

    try:
        tls.check()
    except TlsFilesError as error:
        raise InvalidArgument(str(error)) from error


def check_token(token: Token | str | None) -> Token | None:
    """Returns the token that a client was given, as a Token; None stays None. Raises InvalidArgument if the token
    cannot be read from its file or from the environment."""
    if token is None:
        return None
    from ockam.identity.token import Token, TokenError

    try:
        made = Token(token) if isinstance(token, str) else token
        made.read()
    except TokenError as error:
        raise InvalidArgument(str(error)) from error
    return made


def start_tracing(traces: str | bool) -> Tracing | None:
    """Returns an object that makes the spans of a client, or None if `traces` is false. Raises InvalidArgument."""
    if traces is False:
        return None
    # Only a client that traces loads OpenTelemetry.
    from ockam.tracing.opening import TracingUnavailable, open_tracing

    try:
        return open_tracing(None if traces is True else traces, SERVICE)
    except TracingUnavailable as error:
        raise InvalidArgument(str(error)) from error


def _in_words(error: bare.EncodeError) -> str:
    _, outer, *inner = f"{error.path}.".split(".")
    # For the program, `start` and `before` are single values, although the wire format has fields in them.
    field = outer if outer in ("start", "before") or not inner[:-1] else inner[-2]
    what = re.sub(r"^(?:wants|\w+(?= must be)) (?:must be )?", "", error.what)
    what = re.sub(r"^an int for \w+", "an int", what)
    is_text = what.startswith("str has no")
    return f"{NAMES.get(field, field)} {what.removeprefix('str ') if is_text else f'must be {what}'}"


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
