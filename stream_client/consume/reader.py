"""Reader: pulls one partition page by page, without waiting. Merge: a queue of the readers whose page has arrived.

A reader fetches one page ahead of the program. It uses our own protocol `node/stream_pull/4`, a long poll: while there
is no message, the node can delay its answer. At the end of the stream, a page comes in parts, each as soon as messages
are stored. If the node refuses a protocol, the reader uses the next one. Pages of version 3 come whole and take longer
to decode. Version 1 does not say which incarnation of the stream it reads. The last protocol is the specification's
`stream_pull`, whose messages have no time, key or headers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import msgspec

from ockam.protocol import ProtocolError
from ockam.transport.forwarding import has_more
from stream_client.arguments import encoded
from stream_client.consume.page import IDLE_DELAY_S, Page, page_of
from stream_client.core.calls import PATIENCE_CHECKS, Call, answer_of, pulled
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import PendingResult
from stream_client.errors import (
    AccessDenied,
    ClientError,
    InvalidArgument,
    NotSupported,
    RequestRefused,
)
from stream_client.session import ClientSession
from stream_client.shell.base_shell import CHECK_INTERVAL_S
from stream_service.extensions import (
    MARKED_PULL,
    PACKED_PULL,
    RICH_PULL,
    FromIndex,
    MarkedPull,
    PackedPull,
    RichMessage,
    RichPull,
    Start,
)
from stream_service.page_codec import decode_packed_page, decode_rich_page
from stream_service.protocol import PULL

PACKED, MARKED, RICH, PLAIN = range(4)
"""The protocols of a reader, the best first: versions 4, 3 and 1 of `node/stream_pull`, and `stream_pull`."""
NAMES = PACKED_PULL.name, MARKED_PULL.name, RICH_PULL.name, PULL.name
"""The names of these protocols. The refusal of a node that lacks one contains its name."""
LONG_POLL_S = 5.0
"""The longest time, in seconds, that a node delays its answer to a pull while there is no message. Real Ockam clients
repeat a request after 10 s, so the delay is shorter."""


class Reader:
    """Fetches the pages of one partition, beginning at `start`, one page ahead of the program. Its methods never wait.

    waits: whether the node may delay its answer until there is a message; if false, an empty page comes at once.
    on_page: a function called when `take` can return a page or raise an error.
    created_us: the incarnation of the stream to read: when it was created, in microseconds since 1970; 0: any. A node
        with version 3 or 4 returns no messages of another incarnation.

    Invariant: a reader asks for a page only when the page before is complete and `take` has returned all of it. So the
    messages that wait for `take` are at most a page, however slow the program is.
    """

    def __init__(
        self,
        session: ClientSession,
        handle: PartitionHandle,
        start: Start,
        *,
        page_messages: int,
        waits: bool,
        on_page: Callable[[Reader], None],
        idle_delay_s: float = IDLE_DELAY_S,
        created_us: int = 0,
    ) -> None:
        if page_messages < 1:
            raise InvalidArgument(f"pages of {page_messages} messages; a page has at least 1")
        self.handle = handle
        self.waits = waits
        self._session = session
        self._start = start
        self._page_messages = page_messages
        self._on_page = on_page
        self._idle_delay_s = idle_delay_s
        self.created_us = created_us
        self._protocol = PACKED
        self._connections = 0
        self._left = 0
        self._idle = self._stopped = False
        self._asked_s = 0.0
        self._call: Call | None = None
        self._page: Page | None = None
        self._error: ClientError | None = None
        self._cancel: Callable[[], None] | None = None

    def ask(self) -> None:
        """Requests the next page, unless it is already requested or has arrived. Safe to repeat."""
        # One page ahead of the program is enough; more pages would fill the memory of a slow program.
        if self._stopped or self._call is not None or self._page is not None or self._error is not None:
            return
        # A delayed request is already planned.
        if self._cancel is not None:
            return
        try:
            # The last answer was empty and came at once. Asking again at once would keep both sides busy in vain.
            if self._idle and self.waits:
                self._idle = False
                self._cancel = self._session.shell.call_later(self._idle_delay_s, self._ask_later)
                return
            self._asked_s = self._session.shell.now_s()
            self._call = self._pull()
        # The caller asks several readers in a row. `take` raises the error later, so that it does not stop the others.
        except ClientError as error:
            self._error = error
            self._on_page(self)
        else:
            self._call.when_done(self._answered)

    def take(self) -> Page:
        """Returns the part of the page that has come, or raises the error of the pull. Then `ask` requests the rest."""
        page, self._page = self._page, None
        if page is None:
            error, self._error = self._error, None
            assert error is not None, "a page was taken that has not come"
            raise error.with_traceback(None)
        # The request has failed after some parts of its page. The next `take` raises its error.
        if self._error is not None:
            self._on_page(self)
        return page

    def begin_anew(self) -> None:
        """Continues at the beginning of the stream, which was deleted and created again."""
        self._start = FromIndex(0)

    def stop(self) -> None:
        """Requests no more pages. A page that arrives later is dropped."""
        self._stopped = True
        if self._cancel is not None:
            self._cancel()
        if self._call is not None:
            self._call.forget(self._answered)
            self._session.core.calls.forget(self._call)

    def _ask_later(self) -> None:
        self._cancel = None
        self.ask()

    def _pull(self) -> Call:
        """Requests the page that begins at `_start`, in the best protocol that the node has not refused."""
        core, start = self._session.core, self._start
        # A new connection can lead to a node that has the protocols which the last node refused.
        if self._connections != core.connections:
            self._connections, self._protocol = core.connections, PACKED
        # A service without our own protocols gets `stream_pull`, which can begin at an index only.
        if isinstance(start, FromIndex) and (self._protocol == PLAIN or core.service_route.is_plain):
            self._protocol = PLAIN
            return core.pull(self.handle, start.index, self._page_messages)
        self._left = self._page_messages
        call = core.call(self.handle, self._request(), patience=patience_for(self._wait_s))
        if self._protocol == PACKED:
            call.on_part, call.renew = self._take_part, self._request
        return call

    @property
    def _wait_s(self) -> float:
        """Returns the seconds by which the node may delay its answer."""
        # The client may send a request again after a lost connection. An index then still means the same, but a start
        # such as "the latest" may have moved during a long wait. So the node must not wait with such a start.
        return LONG_POLL_S if self.waits and isinstance(self._start, FromIndex) else 0.0

    def _request(self) -> bytes:
        """Encodes the request for the messages of the page that have not come yet."""
        values = (0, self._start, max(1, self._left), int(self._wait_s * 1000))
        if self._protocol == RICH:
            return encoded(RICH_PULL, RichPull(*values))
        if self._protocol == MARKED:
            return encoded(MARKED_PULL, MarkedPull(*values, self.created_us))
        return encoded(PACKED_PULL, PackedPull(*values, self.created_us))

    def _take_part(self, payload: bytes) -> bool:
        """Stores a part of the page, and returns True. Returns False, and stores nothing, if it is the last part or
        a wrong one: `_answered` handles those."""
        # A node that sends more than was asked for must not fill the memory of a slow program.
        if self._left < 1 or not has_more(payload):
            return False
        try:
            self._keep(page_of(decode_packed_page(payload)))
        except ProtocolError:
            return False
        return True

    def _keep(self, page: Page) -> None:
        """Adds a page, or a part of a page, to the result of the next `take`. Moves `_start` behind it."""
        self._session.best_pull = min(self._session.best_pull, self._protocol)
        self._start = FromIndex(page.resume_index)
        self._left -= len(page.messages)
        before, self._page = self._page, page
        if before is None:
            self._on_page(self)
        elif before.messages:
            self._page = msgspec.structs.replace(page, messages=[*before.messages, *page.messages])

    def _answered(self) -> None:
        """Stores the page, its last part, or the error of the answered pull, and calls `on_page`."""
        call, self._call = self._call, None
        assert call is not None
        # An older node or a real Ockam service refuses our protocol. The reader then uses the next one.
        if isinstance(call.error, RequestRefused) and (following := self._following(call.error)) is not None:
            self._protocol = following
            self.ask()
            return
        try:
            page = self._read(call)
        except ClientError as error:
            self._error = error
            # The old node may have been replaced by one that has our protocol, so the next request uses it again.
            self._protocol = PACKED
            if self._page is None:
                self._on_page(self)
        else:
            # An empty answer that came at once shows that the node does not wait for messages.
            self._idle = not page.messages and self._session.shell.now_s() - self._asked_s < self._idle_delay_s
            self._keep(page)

    def _following(self, refusal: RequestRefused) -> int | None:
        """Returns the protocol in which to repeat a refused pull; None if another protocol cannot help."""
        # If the node has answered in this protocol before, the refusal has another reason. Only a refusal that names
        # the protocol shows that an older node is behind this connection.
        is_known = self._session.best_pull <= self._protocol and NAMES[self._protocol] not in str(refusal)
        if is_known or isinstance(refusal, AccessDenied):
            return None
        # A real Ockam service has none of our own protocols. Its `stream_pull` can begin at an index only.
        following = PLAIN if isinstance(refusal, NotSupported) else self._protocol + 1
        return following if following < PLAIN or (following == PLAIN and isinstance(self._start, FromIndex)) else None

    def _read(self, call: Call) -> Page:
        if call.error is not None:
            raise call.error
        if self._protocol == PACKED:
            return page_of(answer_of(call, MARKED_PULL, decode_packed_page))
        if self._protocol == MARKED:
            return page_of(answer_of(call, MARKED_PULL))
        if self._protocol == RICH:
            return page_of(answer_of(call, RICH_PULL, decode_rich_page))
        # The specification's page says neither where the stream ends nor where the next page begins.
        assert isinstance(self._start, FromIndex)
        messages = [RichMessage(message.index, 0, None, [], message.data) for message in pulled(call)]
        return Page(messages, None, None, messages[-1].index + 1 if messages else self._start.index)


def patience_for(wait_s: float) -> int:
    """Returns the number of checks for late answers after which a pull that may wait `wait_s` seconds is sent again."""
    return PATIENCE_CHECKS + math.ceil(min(wait_s, LONG_POLL_S) / CHECK_INTERVAL_S)


class Merge:
    """A queue of the readers whose next page has arrived, in the order of arrival. A reader is in it at most once, so a
    partition with many messages cannot delay the others."""

    def __init__(self) -> None:
        self._ready: deque[Reader] = deque()
        self._signal = PendingResult()

    def arrived(self, reader: Reader) -> None:
        """Records that a page of this reader has arrived. It is the `on_page` of the Reader."""
        self._ready.append(reader)
        self.wake()

    def wake(self) -> None:
        """Finishes the result that `arrival` last returned, even if no page has arrived."""
        self._signal.finish()

    def drop(self, reader: Reader) -> None:
        reader.stop()
        if reader in self._ready:
            self._ready.remove(reader)

    def arrival(self) -> PendingResult:
        """Returns a result to wait for: it is finished when a reader's page has arrived, and by `wake`."""
        self._signal = PendingResult()
        if self._ready:
            self._signal.finish()
        return self._signal

    def next_nowait(self) -> Reader | None:
        """Returns the reader whose page arrived first; None if none has arrived."""
        return self._ready.popleft() if self._ready else None
