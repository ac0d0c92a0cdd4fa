"""TRACE: the message by which a publisher says to which trace its next push belongs. It has no answer.

A publisher sends it directly before the push, to the same stream. So pushes keep their bytes. A node that does not
trace drops the message. A node that does not know the message sends an `error`, which the publisher ignores.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol

TRACEPARENT_BYTES_MAX = 128
"""The longest traceparent that a node reads. W3C Trace Context has 55 bytes today."""


# type TraceNotice struct { request_id: uint  publisher: str  traceparent: str }
class TraceNotice(msgspec.Struct, frozen=True):
    """The trace of the push with this request id."""

    request_id: bare.UInt
    publisher: str  # the last address of the push's return route, which is otherwise the return route of this message
    traceparent: str  # as in the HTTP header of this name (W3C Trace Context)


TRACE = Protocol("node/trace/1", TraceNotice, TraceNotice)
