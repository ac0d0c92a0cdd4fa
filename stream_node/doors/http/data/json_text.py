"""Checks whether bytes are JSON or text, in slices: decoded values can need a hundred times as much memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

import msgspec

SLICE_BYTES = 48 * 1024
"""A multiple of 3, so that no slice needs padding in base64."""
_DECODER = msgspec.json.Decoder(msgspec.Raw)


def find_json_fault(data: bytes) -> str | None:
    """Returns the reason why bytes are not one value of JSON in UTF-8; None if they are."""
    try:
        _DECODER.decode(data)
        # The decoder does not check the text within strings.
        _check_text(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    return None


def are_json(values: Sequence[bytes], whole: bytes) -> bool:
    """Whether each of the bytes is one value of JSON in UTF-8. whole: all of them, with any ASCII in between."""
    try:
        for data in values:
            _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return is_text(whole)


def is_text(data: bytes) -> bool:
    try:
        _check_text(data)
    except UnicodeDecodeError:
        return False
    return True


def _check_text(data: bytes) -> None:
    if data.isascii():
        return
    for _ in decoded(data):
        pass


def decoded(data: bytes) -> Iterator[str]:
    """Decodes text in UTF-8, in pieces. Raises UnicodeDecodeError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in slices(data):
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def slices(data: bytes) -> Iterator[bytes]:
    return (data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))
