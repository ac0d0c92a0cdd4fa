"""Checks whether bytes are JSON, without making the values: the values can need a hundred times as much memory as the
text."""

from __future__ import annotations

import msgspec

_DECODER = msgspec.json.Decoder(msgspec.Raw)


def find_json_fault(data: bytes) -> str | None:
    """Returns the reason why bytes are not one value of JSON in UTF-8; None if they are."""
    try:
        _DECODER.decode(data)
        # The decoder passes over the text within strings.
        data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return None
