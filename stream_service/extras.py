"""The headers and the sequence number of a message, as the database and bulk pages have them in one column."""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import ProtocolError
from stream_service.extensions import Header, Sequence
from stream_service.limits import StreamLimits


# type Extras struct { headers: list<Header>  sequence: optional<Sequence> }
class Extras(msgspec.Struct, frozen=True):
    """The headers and the sequence number of a message, as its `headers` column has them; NULL without either."""

    headers: list[Header]
    sequence: Sequence | None


_extras_encoder = bare.Encoder(Extras)
_extras_decoder = bare.Decoder(Extras)
NO_EXTRAS = Extras([], None)
encode_extras = _extras_encoder.encode


def encode_beside(headers: list[Header], sequence: Sequence | None = None) -> bytes | None:
    """Returns what is stored beside a message; None if it has neither headers nor a sequence number."""
    return encode_extras(Extras(headers, sequence)) if headers or sequence is not None else None


def decode_extras(stored: bytes | None) -> Extras:
    return NO_EXTRAS if stored is None else _extras_decoder.decode(stored)


def check_beside(key: bytes | None, headers: list[Header], limits: StreamLimits) -> None:
    """Raises ProtocolError if the key or the headers of a message are too large."""
    if len(key or b"") > limits.key_bytes_max:
        raise ProtocolError(f"a key of {len(key or b'')} bytes; at most {limits.key_bytes_max}")
    size_bytes = sum(len(each.name.encode()) + len(each.value) for each in headers)
    if size_bytes > limits.headers_bytes_max:
        raise ProtocolError(f"headers of {size_bytes} bytes; at most {limits.headers_bytes_max}")
