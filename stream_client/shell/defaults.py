"""Timeouts and sizes that both versions of the client share, and the types of some arguments of `connect`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from stream_client.errors import ClientError

Framing: TypeAlias = Literal["head", "legacy", "auto"]
"""How messages are delimited on the connection: "head" for Ockam since June 2024, "legacy" for older Ockam. With
"auto", the client sends the first byte of a "head" connection, and uses "legacy" if no answer comes."""

OnLink: TypeAlias = Callable[[ClientError | None], None]
"""Called with an error when the connection or the route to the services is lost, and with None when it is restored."""

READ_BYTES_MAX = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
"""The longest time, in seconds, of each step of an attempt to connect: TCP and TLS, the hello, the token."""
CONNECT_TIMEOUT_S_MIN = 1.0
"""Each step of an attempt to connect may take this many seconds, even if the program waits less for an answer."""
AUTO_WAIT_S = 0.3
"""With the framing "auto", the seconds to wait for an answer to the hello. Nodes that use "head" answer at once, and
connecting to an older node takes this much longer."""
AUTO_WAIT_S_MAX = 2.0
"""Replaces AUTO_WAIT_S after a connection without received bytes. Perhaps the answer of a distant "head" node takes
longer than AUTO_WAIT_S, so that the client has used "legacy" with it."""
ANSWER_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 2.0
"""The seconds between two checks for late answers. An unanswered request is sent again after one to two intervals.
Answers come within milliseconds, or after a disk failure within the node's `error_delay_s`."""
GATHER_S = 0.25
"""The longest time, in seconds, for which pushes to many streams wait for further pushes that join their batches."""
LAST_WORDS_S = 1.0
"""The longest time, in seconds, that the end of a client takes to send its last messages, such as a saved position."""


def connect_timeout_s(wait_s: float | None) -> float:
    return CONNECT_TIMEOUT_S if wait_s is None else min(CONNECT_TIMEOUT_S, max(CONNECT_TIMEOUT_S_MIN, wait_s))
