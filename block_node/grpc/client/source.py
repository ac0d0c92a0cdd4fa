"""GrpcSource: a source of blocks for backfill over gRPC, such as a reference block node (facts/block_node.md §1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from block_node.backfill.route_source import ANSWER_S_MAX, LACKING, LOOK_S, FetchListener, RootDone, StatusDone
from block_node.events import ITEM_OVERHEAD_BYTES
from block_node.grpc.client.channel import AnswerHandler, AskedCall, AskingConnection, GrpcChannel
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.limits import ASK_BYTES_MAX
from block_node.grpc.messages import (
    SUBSCRIBED_SET,
    MessageFormatError,
    WireMessage,
    find_set,
    known_block,
    read_message,
    write_message,
)
from block_node.persist.ranges import BlockRanges
from block_node.protocol_reading import SubscribeStatus
from ockam.actors.node import Node

API: Final = b"/org.hiero.block.api."
DETAIL: Final = API + b"BlockNodeService/serverStatusDetail"
STATUS: Final = API + b"BlockNodeService/serverStatus"
SUBSCRIBE: Final = API + b"BlockStreamSubscribeService/subscribeBlockStream"
STATUS_TAG: Final = b"\x08"
"""The first byte of a `SubscribeStreamResponse` that is a status."""
ITEMS_STEP: Final = 10_000
"""How many items are taken before they are counted. A message of 125 MB can have 60 million."""


class GrpcSource:
    """Another block node, whose blocks come over `channel`. silence_s_max: the longest wait for a message.

    status: the channel for questions about its blocks; None: `channel`, too. Real nodes can serve status and blocks at
    two addresses."""

    def __init__(
        self, node: Node, channel: GrpcChannel, status: GrpcChannel | None = None, *, silence_s_max: float
    ) -> None:
        self._node = node
        self._channel = channel
        self._status_channel = channel if status is None else status
        self._silence_s_max = silence_s_max

    def ask_status(self, on_done: StatusDone, path: bytes = DETAIL) -> None:
        def answered(message: bytes | None, status: GrpcStatus, text: str) -> None:
            if status is GrpcStatus.UNIMPLEMENTED and path == DETAIL:
                # Nodes of earlier versions have no detail. The next question asks for it again, as nodes are updated.
                self.ask_status(on_done, STATUS)
            elif message is None:
                on_done(None, f"{status.name}: {text}")
            else:
                try:
                    ranges = _ranges_of(message, is_detail=path == DETAIL)
                except MessageFormatError as error:
                    on_done(None, str(error))
                else:
                    on_done(ranges, "")

        patience_s = min(ANSWER_S_MAX, self._silence_s_max)

        def ask(connection: AskingConnection) -> None:
            try:
                connection.ask(path, OneAnswer(answered), b"", timeout_s=patience_s)
            except CallRefused as refused:
                on_done(None, refused.text)

        self._status_channel.use(ask, lambda reason: on_done(None, reason))

    def ask_root(self, number: int, size_bytes: int, on_done: RootDone) -> None:
        """Calls `on_done` without a root hash: no message of the protocol names the root hash of a block."""
        self._node.call_later(0, lambda: on_done(None, "a source over gRPC names no root hashes"))

    def fetch(self, first: int, last: int, listener: FetchListener) -> GrpcFetch:
        fetch = GrpcFetch(self._node, first, last, listener, self._silence_s_max)
        self._channel.use(fetch.begin, fetch.fail)
        return fetch

    def close(self) -> None:
        self._channel.close()
        self._status_channel.close()


class OneAnswer(AnswerHandler):
    """The answer to a call that has one message. on_done: called with the message (None after a failure), the status
    and the status text."""

    def __init__(self, on_done: Callable[[bytes | None, GrpcStatus, str], None]) -> None:
        self._on_done = on_done
        self._message: bytes | None = None

    def take(self, message: bytes) -> None:
        self._message = message

    def done(self, status: GrpcStatus, text: str) -> None:
        is_ok = status is GrpcStatus.OK and self._message is not None
        self._on_done(self._message if is_ok else None, status, text or "no answer came")


class SubscribeAnswer(AnswerHandler):
    """The base of the classes that receive the blocks of a subscription. A subclass decides what to do with a block,
    and when it is too large: `_grew` gets the number of its bytes as they arrive, also within a message.

    Invariant: `_items` has the items of the present block. `_counted_bytes` bytes of the incomplete message were
    reported to `_grew`.
    """

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._counted_bytes = 0

    def take(self, message: bytes) -> None:
        counted_bytes, self._counted_bytes = self._counted_bytes, 0
        try:
            found = find_set(message, SUBSCRIBED_SET)
            if found is not None:
                self._grew(max(0, len(message) - counted_bytes))
                while found.left_bytes and self._wants_more:
                    self._add(found.take(ITEMS_STEP, len(message))[0])
                return
            # Any other message is read in one step, so it must be small.
            if len(message) > ASK_BYTES_MAX:
                raise MessageFormatError(f"{len(message)} bytes with something beside a set of items")
            part = read_message("SubscribeStreamResponse", message)
        except MessageFormatError as error:
            self._take_damaged(str(error))
            return
        if "block_items" in part:
            self._grew(len(message))
            self._add(part["block_items"].get("block_items", []))
        elif "end_of_block" in part:
            self._end_block(part["end_of_block"].get("block_number", 0))
        elif "status" in part:
            self._take_status(part["status"])

    def note_arriving(self, size_bytes: int) -> None:
        more_bytes, self._counted_bytes = size_bytes - self._counted_bytes, size_bytes
        self._grew(more_bytes)

    def _add(self, items: list[bytes]) -> None:
        self._items += items
        self._grew(ITEM_OVERHEAD_BYTES * len(items))

    @property
    def _wants_more(self) -> bool:
        raise NotImplementedError

    def _grew(self, size_bytes: int) -> None:
        """Counts more bytes of the present block, including the memory that its items take beside their bytes."""
        raise NotImplementedError

    def _end_block(self, number: int) -> None:
        raise NotImplementedError

    def _take_status(self, code: int) -> None:
        raise NotImplementedError

    def _take_damaged(self, reason: str) -> None:
        raise NotImplementedError


class GrpcFetch(SubscribeAnswer):
    """The blocks from `first` to `last` of a source, for one listener.

    Invariant: `_items` has the received items of block `_next`. `_listener` is None once all blocks have come or the
    fetch has failed. `_call` is None before the call begins and after its end.
    """

    def __init__(self, node: Node, first: int, last: int, listener: FetchListener, silence_s_max: float) -> None:
        super().__init__()
        self._node = node
        self._next, self._last = first, last
        self._listener: FetchListener | None = listener
        self._silence_s_max = silence_s_max
        self._look_s = min(LOOK_S, silence_s_max / 4)
        self._silence_s = 0.0
        self._call: AskedCall | None = None

    def begin(self, connection: AskingConnection) -> None:
        # The request may have been cancelled while the connection was being made.
        if self._listener is None:
            return
        request = {"start_block_number": self._next, "end_block_number": self._last}
        try:
            self._call = connection.ask(SUBSCRIBE, self, write_message("SubscribeStreamRequest", request))
        except CallRefused as refused:
            self.fail(refused.text)
        else:
            self._call.watch(self.note_arriving)
            self._node.call_later(self._look_s, self._watch)

    def cancel(self) -> None:
        self._listener = None
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def fail(self, reason: str, *, lied: bool = False) -> None:
        listener = self._listener
        self.cancel()
        if listener is not None:
            listener.ended(reason, lied=lied)

    # The answer.

    def take(self, message: bytes) -> None:
        self._silence_s = 0.0
        # After the last block, only the status may come. The call of a source that sends more is cancelled.
        if self._listener is None:
            if not message.startswith(STATUS_TAG):
                self.cancel()
            return
        super().take(message)

    def done(self, status: GrpcStatus, text: str) -> None:
        self.fail(f"{status.name}: {text or 'the subscription ended too early'}", lied=status is GrpcStatus.OK)

    @property
    def _wants_more(self) -> bool:
        return self._listener is not None

    def _grew(self, size_bytes: int) -> None:
        self._silence_s = 0.0
        if self._listener is not None:
            self._listener.grew(size_bytes)

    def _take_damaged(self, reason: str) -> None:
        self.fail(reason, lied=True)

    def _end_block(self, number: int) -> None:
        if number != self._next or not self._items:
            self.fail(f"block {number} ended, and block {self._next} had not come", lied=True)
            return
        items, self._items = self._items, []
        self._next += 1
        listener = self._listener
        if self._next > self._last:
            # The status that follows says nothing new, so the call goes on without a listener to its end: a node counts
            # the calls that its peers cancel.
            self._listener = None
        if listener is not None:
            listener.block(number, items)

    def _take_status(self, code: int) -> None:
        # SUCCESS before the last block, and the codes of LACKING, show a false claim. Other failures may be temporary.
        known = code in SubscribeStatus.__members__.values()
        name = SubscribeStatus(code).name if known else f"code {code}"
        lied = code == SubscribeStatus.SUCCESS or code in LACKING
        self.fail(f"{name} before block {self._next}", lied=lied)

    def _watch(self) -> None:
        if self._call is None:
            return
        self._silence_s += self._look_s
        if self._silence_s > self._silence_s_max:
            self.fail(f"silent for {self._silence_s_max:g} s")
        else:
            self._node.call_later(self._look_s, self._watch)


def _ranges_of(message: bytes, *, is_detail: bool) -> BlockRanges:
    """Returns the blocks that a source claims, by its status or its status in detail. Raises MessageFormatError."""
    if is_detail:
        found = read_message("ServerStatusDetailResponse", message).get("available_ranges", [])
        return BlockRanges(_checked_range(each) for each in found)
    status = read_message("ServerStatusResponse", message)
    first, last = status.get("first_available_block", 0), status.get("last_available_block", 0)
    # The largest number stands for "no block" in either field.
    if known_block(last) is None or known_block(first) is None:
        return BlockRanges()
    return BlockRanges([_checked_range({"range_start": first, "range_end": last})])


def _checked_range(each: WireMessage) -> tuple[int, int]:
    """Returns a range of blocks that a source claims. Raises MessageFormatError if it is impossible."""
    first, last = each.get("range_start", 0), each.get("range_end", 0)
    if first > last or known_block(last) is None:
        raise MessageFormatError(f"a range from block {first} to {last}")
    return first, last
