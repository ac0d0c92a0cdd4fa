"""StoringForwarder: a forwarding address whose messages wait in a stream until its client has them.

    sender ──▶ StoringForwarder ──push──▶ stream `forward/<address>/<owner>` ──pull──▶ StoringForwarder ──▶ client
       ◀───── answer, if it wants one ◀── confirm                            ◀──── truncate, when the client has it

Every message is stored first, also while the client is connected, so that the order is kept. A message that the client
has is deleted, so the stream begins with the next message to deliver. After a kill, the messages whose deletion was not
committed come again. The name of the stream has what a restart of the node needs: the address, and its owner."""

from __future__ import annotations

from typing import cast

from ockam.actors.address import Address, local
from ockam.actors.forwarders import FORWARDED, NOT_FORWARDED, STATIC_PREFIX, Forwarder, Forwarders, Registration
from ockam.actors.forwarding_protocol import DELIVERY, FORWARD, ForwardDelivery, Forwarded
from ockam.actors.message import HERE, Message
from ockam.actors.node import Node
from ockam.identity.identity import NODE, Identity, Source
from ockam.identity.rules.rights import Right
from ockam.identity.rules.rules import Rule
from stream_client.correspondent import RoutedMessage, encode_routed
from stream_node.forwarding.stream_link import LinkedWorker, StreamLink, read_routed
from stream_service.extensions import (
    INFO,
    RICH_PULL,
    TRUNCATE,
    BeforeIndex,
    InfoRequest,
    RichPage,
    TruncateRequest,
)

STREAM_PREFIX = "forward/"
KEEPERS = (
    Rule(
        "the forwarding service keeps its streams",
        (),
        may_not=Right.WRITE | Right.CREATE,
        on=(STREAM_PREFIX,),
        keeper=NODE,
        reason=f"a stream whose name begins with {STREAM_PREFIX!r} is made and written by the forwarding service alone",
    ),
)
"""The built-in rules: a stream that somebody else has made would give an address away."""
WAITING_MESSAGES_MAX = 100_000
WAITING_BYTES_MAX = 256 * 1024 * 1024
"""The most that waits for one client. Further messages are refused, so that no stored message has to be deleted."""
STORED = "stored"
"""The name by which the node counts messages that are stored for a client."""
RETRY_S = 1.0


def find_registration(stream_name: str) -> Registration | None:
    """Returns the registration whose messages a stored stream holds; None if the stream holds no such messages."""
    address, _, owner = stream_name.removeprefix(STREAM_PREFIX).partition("/")
    # Before the service was switched on, everybody could make streams of such names. None of them may take the address
    # of a service.
    if not stream_name.startswith(STREAM_PREFIX + STATIC_PREFIX) or not owner:
        return None
    source, _, name = owner.partition(":")
    return Registration(local(address), Identity(cast("Source", source), name), owner, stores=True)


class StoringForwarder(Forwarder, LinkedWorker):
    """The worker of one address that stores its messages. service: the address of the stream service.

    Invariant: `_position` is the index of the next message that the client is to get, and `_next` the index that the
    next stored message will have. At most one page is under way to the client: from `_position` on, in the delivery
    `_turn`. Each registration and each page begins a new turn, and all that belongs to an older one is ignored."""

    def __init__(self, node: Node, registration: Registration, forwarders: Forwarders, service: Address) -> None:
        super().__init__(node, registration)
        self._forwarders = forwarders
        self._service = service
        self._is_open = False
        self._join: bytes | None = None
        self._position = self._next = self._cut = 0
        self._waiting_bytes = 0
        self._turn = 0
        self._way = registration.origin.connection
        self._is_looking = False
        self._is_delivering = self._is_cutting = self._is_counting = False
        # Of the page that is under way: the index behind it, the sizes of its data by index, and the last index to be
        # confirmed.
        self._page_end = 0
        self._page_sizes: dict[int, int] = {}
        self._last_sent = -1

    def started(self) -> None:
        # Until the stream is open, messages wait in the mailbox.
        self.context.pause()
        name = f"{STREAM_PREFIX}{self.registration.address}/{self.registration.owner}"
        self._link = StreamLink(self, self._node, name, service=self._service, origin=HERE)
        self._link.open()

    def stopped(self) -> None:
        self._way.holdings.unwatch(self.registration)
        self._link.close()

    @property
    def waiting(self) -> int:
        """The number of messages that the client has not got."""
        return self._next - self._position + self._link.pending

    @property
    def is_behind(self) -> bool:
        """Whether so many messages wait for the client that no further ones are stored."""
        is_behind = self.waiting >= WAITING_MESSAGES_MAX or self._waiting_bytes >= WAITING_BYTES_MAX
        if is_behind and not self._is_counting:
            # Retention may have deleted messages, or a client the whole stream: count again, for later messages.
            self._is_counting = self._link.ask("count", INFO.encode_request(InfoRequest(0)))
            if not self._is_counting:
                self._forwarders.end(self.registration)
        return is_behind

    def joined(self, answer: bytes) -> None:
        self._turn += 1
        self._take_way()
        self._is_delivering = False
        self._join = answer
        if self._is_open:
            self._go_on()

    # From a sender into the stream.

    def forward(self, message: Message, payload: bytes, request_id: int | None) -> None:
        rest = message.onward_route[1:]
        refusal = self.refusal_of_size(rest, message.return_route, payload) if self.is_connected else None
        # A subscription looks for room before it sends a page. A page that fills the room is stored as a whole.
        if message.origin.kind != "stream" and self.is_behind:
            refusal = f"too much waits for {self.registration.address} already; its client must take it first"
            if not self._is_counting:
                self._end(message)
                return
        if refusal is not None:
            self.refuse(message, refusal)
            return
        data = encode_routed(RoutedMessage(rest, self._note_sender(message), payload, ""))
        self._waiting_bytes += len(data)
        if not self._link.push(message, data):
            self._end(message)

    def settled(self, message: Message, size_bytes: int, index: int | None, reason: str) -> None:
        if index is None:
            # A message that is not stored must not count. Else a full disk would have all senders refused for good.
            self._waiting_bytes -= size_bytes
            self.refuse(message, reason)
            return
        self._next = max(self._next, index + 1)
        self._node.count(STORED)
        if FORWARD.is_in(message.payload) and message.return_route:
            request_id = FORWARD.decode_request(message.payload).request_id
            self.reply(message, FORWARD.encode_response(Forwarded(request_id, stored=True)))
        self._go_on()

    def _end(self, message: Message) -> None:
        # Somebody has deleted the stream, and with it the address.
        self._forwarders.end(self.registration)
        self.refuse(message, f"{self.registration.address} stores nothing any more")

    # From the stream to the client.

    def answered(self, what: str, payload: bytes) -> None:
        if what == "open":
            self._link.ask("info", INFO.encode_request(InfoRequest(0)))
        elif what == "info":
            info = INFO.decode_response(payload).info
            self._position = self._cut = info.first_index
            self._next = info.next_index
            self._waiting_bytes = info.size_bytes
            self._is_open = True
            self.context.resume()
            self._go_on()
        elif what == "count":
            self._is_counting, info = False, INFO.decode_response(payload).info
            # A page that is under way to a client is counted by its confirms.
            if not (self._is_delivering and self.is_connected):
                self._position = max(self._position, info.first_index)
                self._waiting_bytes = info.size_bytes + self._link.pending_bytes
        elif what == "pull":
            page = RICH_PULL.decode_response(payload)
            if page.request_id == self._turn:
                self._deliver(page)
        else:
            self._cut = max(self._cut, TRUNCATE.decode_response(payload).first_index)
            self._cut_again()

    def failed(self, what: str, payload: bytes) -> None:
        if what == "pull":
            turn = self._turn
            self.context.call_later(RETRY_S, lambda: self._retry(turn))
            return
        if what == "count":
            self._is_counting = False
            return
        if what == "cut":
            # A page that is under way goes on meanwhile.
            self.context.call_later(RETRY_S, self._cut_again)
            return
        # The stream cannot be opened, or somebody has deleted it. All waiting senders, and the client, get an error.
        for message in self._link.take_pending():
            self.refuse(message, f"{self.registration.address} stores nothing any more")
        if self.registration.route:
            self.context.send(Message(self.registration.route, (), payload))
        self._forwarders.end(self.registration)

    def _retry(self, turn: int) -> None:
        if turn == self._turn:
            self._is_delivering = False
            self._go_on()

    def _cut_again(self) -> None:
        self._is_cutting = False
        self._truncate()

    def _go_on(self) -> None:
        """Tells the client that it is registered. If messages wait for it, asks the stream for the next page."""
        if self._join is not None:
            answer, self._join = self._join, None
            super().joined(answer)
        if not self._is_delivering and self._position < self._next and self.is_connected:
            self._take_way()
            self._is_delivering = True
            self._turn += 1
            self._link.pull(self._position, request_id=self._turn, wait_ms=0)
        if not self._is_looking:
            self._look_for_way()

    def _look_for_way(self) -> None:
        """Looks again and again, until the end of the client's channel, whether the channel has moved to another
        connection. Then it sends the messages that were under way again."""
        origin = self.registration.origin
        self._is_looking = origin.channel is not None and not origin.channel.has_ended
        if not self._is_looking:
            return
        if self.is_connected and origin.connection is not self._way:
            self._take_way()
            self._retry(self._turn)
        self.context.call_later(RETRY_S, self._look_for_way)

    def _take_way(self) -> None:
        self._way.holdings.unwatch(self.registration)
        self._way = self.registration.origin.connection

    def _deliver(self, page: RichPage) -> None:
        registration, sent = self.registration, []
        self._page_end = page.resume_index
        self._page_sizes = {message.index: len(message.data) for message in page.messages}
        for message in page.messages:
            routed = read_routed(message)
            # A repair leaves empty messages. A message that the client's framing cannot carry would stop all others.
            if routed is None or self.refusal_of_size(routed.onward_route, routed.return_route, routed.payload):
                self._node.count_drop(NOT_FORWARDED)
                continue
            # A sender that is gone gets no answer: the message has no return route then.
            sender = routed.return_route[1:2]
            is_there = bool(sender) and sender[0] in self._senders and self._node.is_registered(sender[0])
            back = routed.return_route if is_there else ()
            payload = routed.payload
            if registration.confirms:
                payload = DELIVERY.encode_request(ForwardDelivery(message.index, payload))
            self._last_sent = message.index
            sent.append(self.through(back, routed.onward_route, payload))
        self.context.send_run(sent)
        self._node.count(FORWARDED, len(sent))
        if not page.messages and page.resume_index <= self._position:
            self.failed("pull", b"")
        elif not sent:
            self._advance(page.resume_index)
        elif not registration.confirms:
            turn = self._turn
            # The connection sends at the end of this batch.
            self.context.call_later(0, lambda: self._check_taken(turn))

    def _check_taken(self, turn: int) -> None:
        """Ends the delivery of a page when the client's connection has sent all bytes, unless it has ended before."""
        way = self._way
        if turn != self._turn or not self._is_delivering or self.registration.origin.connection is not way:
            return
        if way.backlog_bytes():
            later = self.context.call_later
            # When another connection takes the registration over, `_take_way` ends this watch.
            way.holdings.watch(self.registration, lambda has_ended: later(0, lambda: self._check_taken(turn)))
            return
        way.holdings.unwatch(self.registration)
        if self.is_connected:
            self._advance(self._page_end)

    def confirmed(self, message: Message) -> None:
        # A late confirm over an older connection says nothing about the messages that go over this one.
        if not self._is_owner(message) or not self._is_delivering or not self.registration.confirms:
            self._node.count_drop("late_confirm")
            return
        index = DELIVERY.decode_response(message.payload).index
        if not self._position <= index <= self._last_sent:
            # A repeated confirm says nothing about the next page, which is not sent yet.
            self._node.count_drop("late_confirm")
        elif index == self._last_sent:
            self._advance(self._page_end)
        else:
            self._take(index + 1)
            self._truncate()

    def _take(self, index: int) -> None:
        """Notes that the client has everything before this index."""
        self._position = max(self._position, index)
        # Count each part of a page: the rest may never be confirmed, because the client can register again.
        while self._page_sizes and (first := next(iter(self._page_sizes))) < index:
            self._waiting_bytes -= self._page_sizes.pop(first)

    def _advance(self, index: int) -> None:
        self._take(index)
        if self._position >= self._next and not self._link.pending:
            self._waiting_bytes = 0
        self._is_delivering = False
        self._truncate()
        self._go_on()

    def _truncate(self) -> None:
        if not self._is_cutting and self._position > self._cut:
            request = TruncateRequest(0, BeforeIndex(self._position))
            self._is_cutting = self._link.ask("cut", TRUNCATE.encode_request(request))
