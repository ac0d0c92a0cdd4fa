"""What the tests of the codecs share: payloads with some bytes spoilt, and what a codec makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import bare
from ockam.protocol import ProtocolError


def outcome(function: Callable[..., Any], *arguments: Any) -> object:
    """What a call returns, or the type and text of what it raises."""
    try:
        return function(*arguments)
    except (ProtocolError, bare.BareError) as error:
        return type(error), str(error)


def spoil(draw: st.DrawFn, whole: bytes, within: int) -> bytes:
    """The payload with some bytes changed, left out, put in or added, all of them among its first `within` bytes."""
    payload = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(len(payload), within)))
        how = draw(st.sampled_from(["change", "cut", "insert", "end"]))
        if how == "insert":
            payload.insert(at, draw(st.sampled_from([0, 1, 127, 128, 255])))
        elif how == "cut":
            del payload[at : at + draw(st.integers(1, 3))]
        elif how == "end":
            del payload[at:]
        elif at < len(payload):
            payload[at] = draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    return bytes(payload)
