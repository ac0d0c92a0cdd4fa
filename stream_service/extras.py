"""The headers and the sequence number of a message, as the database and bulk pages have them in one column."""

from __future__ import annotations

import msgspec

import bare
from stream_service.extensions import Header, Sequence


# type Extras struct { headers: list<Header>  sequence: optional<Sequence> }
class Extras(msgspec.Struct, frozen=True):
    """The headers and the sequence number of a message, as its `headers` column has them; NULL without either."""

    headers: list[Header]
    sequence: Sequence | None


_extras_encoder = bare.Encoder(Extras)
_extras_decoder = bare.Decoder(Extras)
NO_EXTRAS = Extras([], None)
encode_extras = _extras_encoder.encode


def decode_extras(stored: bytes | None) -> Extras:
    return NO_EXTRAS if stored is None else _extras_decoder.decode(stored)
