# Generated from stream_client/consume/reader.py by tools/generate_blocking.py; do not edit.
"""Readers pull one partition page by page, one page ahead of the program; `Merge` waits for the pages of several.

Pages come by `node/stream_pull/1`, which the node holds until there is a message (a long poll). A node that answers
this pull with `error`, and has never answered it otherwise, is asked by the specification's `stream_pull`; messages
then have no time, key or headers. Where the node did not hold an empty answer, the reader asks again after a delay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from stream_client.arguments import encoded
from stream_client.blocking.session import Session, Shell
from stream_client.consume.options import IDLE_DELAY_S
from stream_client.consume.page import Page
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import answer_of, pulled
from stream_client.core.requests import PATIENCE_CHECKS, Call, Waiting
from stream_client.errors import ClientError, InvalidArgument, RequestRefused
from stream_client.shell.defaults import CHECK_INTERVAL_S
from stream_service.extensions import RICH_PULL, FromIndex, RichMessage, RichPull, Start

LONG_POLL_S = 5.0
"""How long a node may hold an answer: the node's own bound, below the 10 s after which real clients ask again."""


class Reader:
    """The pages of one stream-partition, from `start` on. It waits for nothing itself: `on_page` tells of each page.

    waits: whether the node may hold an answer while there is no message; else an empty page comes at once.
    on_page: called when `take` has a page or an error.
    Invariant: there is at most one of a call under way, a page not taken, and an error not taken.
    """

    def __init__(
        self,
        session: Session,
        handle: PartitionHandle,
        start: Start,
        *,
        page_messages: int,
        waits: bool,
        on_page: Callable[[Reader], None],
        idle_delay_s: float = IDLE_DELAY_S,
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
        self._plain = self._idle = self._stopped = False
        self._asked_s = 0.0
        self._call: Call | None = None
        self._page: Page | None = None
        self._error: ClientError | None = None
        self._cancel: Callable[[], None] | None = None

    def ask(self) -> None:
        """Ask for the next page, unless it is on its way or here already. Safe to repeat."""
        # One page ahead of the program is enough; more would fill the memory of a slow one.
        if self._stopped or self._call is not None or self._page is not None or self._error is not None:
            return
        # A request is planned already.
        if self._cancel is not None:
            return
        try:
            # The node did not hold the last, empty answer: asking again at once would keep both sides busy in vain.
            if self._idle and self.waits:
                self._idle = False
                self._cancel = self._session.shell.call_later(self._idle_delay_s, self._ask_later)
                return
            self._asked_s = self._session.shell.now_s()
            self._call = self._pull()
        except ClientError as error:
            self._error = error
            self._on_page(self)
        else:
            self._call.when_done(self._answered)

    def take(self) -> Page:
        """The page that has come. Raises the error that came in place of a page; you may then `ask` again."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        page, self._page = self._page, None
        assert page is not None, "a page was taken that has not come"
        return page

    def stop(self) -> None:
        """Ask for no more pages, and drop the one on its way."""
        self._stopped = True
        if self._cancel is not None:
            self._cancel()
        if self._call is not None:
            self._call.forget(self._answered)
            self._session.core.forget(self._call)

    def _ask_later(self) -> None:
        self._cancel = None
        self.ask()

    def _pull(self) -> Call:
        """Ask for the page at `_start`, by our own protocol where the node has it."""
        core, start = self._session.core, self._start
        if self._plain and isinstance(start, FromIndex):
            return core.pull(self.handle, start.index, self._page_messages)
        # A request may be sent again after a lost connection. An index then means the same as before, while a start
        # such as "the latest" may have moved during a long wait: so the node resolves such a start without waiting.
        wait_s = LONG_POLL_S if self.waits and isinstance(start, FromIndex) else 0.0
        request = RichPull(0, start, self._page_messages, int(wait_s * 1000))
        return core.call(self.handle, encoded(RICH_PULL, request), patience=patience_for(wait_s))

    def _answered(self) -> None:
        """Keep the page or the error that has come, and tell the owner. A page moves the start behind itself."""
        call, self._call = self._call, None
        assert call is not None
        # An older node, or an Ockam service, refuses our protocol: it is asked again by the specification's pull.
        if isinstance(call.error, RequestRefused) and self._may_be_unknown():
            self._plain = True
            self.ask()
            return
        try:
            self._page = self._read(call)
        except ClientError as error:
            self._error = error
            # The next attempt may reach a node that has our protocol: the old one may have been replaced.
            self._plain = False
        else:
            self._session.has_rich_pull |= not self._plain
            self._start = FromIndex(self._page.resume_index)
            # An empty answer that came at once was not held.
            self._idle = not self._page.messages and self._session.shell.now_s() - self._asked_s < self._idle_delay_s
        self._on_page(self)

    def _may_be_unknown(self) -> bool:
        """Whether a node that refused our pull may not know it, so that the specification's pull is worth a try."""
        return not (self._plain or self._session.has_rich_pull) and isinstance(self._start, FromIndex)

    def _read(self, call: Call) -> Page:
        """The page in an answer. Raises the call's error, and UnexpectedAnswer."""
        if call.error is not None:
            raise call.error
        if not self._plain:
            page = answer_of(call, RICH_PULL)
            return Page(page.messages, page.first_index, page.next_index, page.resume_index)
        assert isinstance(self._start, FromIndex)
        messages = [RichMessage(message.index, 0, None, [], message.data) for message in pulled(call)]
        return Page(messages, None, None, messages[-1].index + 1 if messages else self._start.index)


def patience_for(wait_s: float) -> int:
    """After how many checks without an answer to send a pull again that the node may hold for `wait_s`."""
    return PATIENCE_CHECKS + math.ceil(min(wait_s, LONG_POLL_S) / CHECK_INTERVAL_S)


class Merge:
    """The pages of several readers in the order in which they come.

    Each reader has at most one page here, so that a busy partition cannot starve the others.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._ready: deque[Reader] = deque()
        self._signal: Waiting | None = None

    def arrived(self, reader: Reader) -> None:
        """Note that a reader has a page; for `Reader.on_page`."""
        self._ready.append(reader)
        self.wake()

    def wake(self) -> None:
        """End the wait of `next_ready`, if there is one."""
        signal, self._signal = self._signal, None
        if signal is not None:
            signal.finish()

    def drop(self, reader: Reader) -> None:
        """Stop a reader and forget its page."""
        reader.stop()
        if reader in self._ready:
            self._ready.remove(reader)

    def next_ready(self, timeout_s: float = math.inf) -> Reader | None:
        """The reader whose page came first; None where no page came in time, or `wake` was called."""
        if not self._ready and timeout_s > 0:
            self._signal = Waiting()
            self._shell.wait(self._signal, None if timeout_s == math.inf else timeout_s)
            self._signal = None
        return self._ready.popleft() if self._ready else None
