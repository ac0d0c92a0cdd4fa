"""Timeouts and sizes that both shells share, and the types of some arguments of `connect`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from stream_client.errors import ClientError

Framing: TypeAlias = Literal["head", "legacy", "auto"]
"""The framing of the connection. With "auto" the client sends the hello of the head framing, and uses the legacy
framing if no answer comes."""

OnLink: TypeAlias = Callable[[ClientError | None], None]
"""A function called with an error when the connection to the node or the route to its services is lost, and called with
None when it is back."""

READ_BYTES_MAX = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
AUTO_WAIT_S = 0.3
"""How long "auto" waits for an answer to its hello. A connection to a legacy node costs this time; head nodes answer at
once."""
AUTO_WAIT_S_MAX = 2.0
"""How long "auto" waits for an answer after a connection that brought nothing. With the shorter wait, a distant head
node would be taken for a legacy node."""
ANSWER_TIMEOUT_S = 30.0
CHECK_INTERVAL_S = 2.0
"""The time between two checks. An unanswered request is sent again after one to two of these intervals. Answers come
within milliseconds, or after a failed disk within the node's `error_delay_s`."""
LAST_WORDS_S = 1.0
"""How long the end of a client may take to send the messages that wait for no answer: a saved position, a leave."""
