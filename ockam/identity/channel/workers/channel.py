"""ChannelWorker: the responder's end of one secure channel on a node.

It has two addresses. Encrypted messages of the other side come to the inner one, and the answers of this node's workers
to the outer one:

    connection ── nonce | ciphertext ──▶ inner ── message, return route [outer, …] ──▶ workers of this node
    connection ◀── nonce | ciphertext ── outer ◀──────────── answer ──────────────────┘

A crash of the worker ends the channel. The node never restarts it: a restarted worker would begin again with nonce 0,
and the cipher protects nothing once a nonce is used twice with one key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog
import trio

from ockam.actors.address import LOCAL, Address, Route
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.identity.channel.channel_machine import ChannelMachine, SecureChannelState
from ockam.identity.channel.errors import HandshakeFailed, IdentityRefused, NoncesUsedUp, PeerRefused, PlaintextRefused
from ockam.identity.channel.identity_history import PeerIdentity
from ockam.identity.channel.messages import AROUND_BYTES_MAX, CLOSE, PlaintextReader, PlaintextWriter
from ockam.identity.identity import Identity
from ockam.identity.rules.rights import NOTHING, Demand
from ockam.quotas.limits import Bucket
from ockam.quotas.usage import UNLIMITED, Usage
from ockam.transport.forwarding import CONNECTION_PREFIX
from ockam.transport.wire_head import HEAD

REFRESHES_PER_S, REFRESHES_MAX = 1.0, 10.0

HANDSHAKE_FAILURES_MAX = 3
"""A handshake ends after this many wrong messages 3: each costs a Diffie-Hellman computation."""

logger = structlog.get_logger(__name__)


class Owner(Protocol):
    """The owner of all channels, a `SecureChannels`, as one channel sees it."""

    def now_s(self) -> int: ...
    def opened(self, channel: ChannelWorker, peer: PeerIdentity, origin: Origin) -> str | None: ...
    def usage_of(self, channel: ChannelWorker, below: Usage) -> Usage: ...
    def refused(self, origin: Origin, error: PeerRefused) -> None: ...
    def handshake_failed(self, origin: Origin, reason: str) -> None: ...
    def renewed(self, channel: ChannelWorker, peer: PeerIdentity) -> None: ...
    def ended(self, channel: ChannelWorker, reason: str, shown: str = "") -> None: ...
    def count_drop(self, reason: str, count: int = 1) -> None: ...


class ChannelWorker(Worker):
    """The worker of one secure channel. It stops when the channel ends.

    inner: the worker's address that receives ciphertext from the other side.
    outer: the worker's address that receives plaintext from this node's workers, to encrypt and send it.
    used_at_s: the time of the last message that was decrypted or encrypted (no other counts), on trio's clock.
    gone_at_s: the time at which its connection was first seen to have ended; None while the connection is there.

    Invariant: messages to the other side are sent in the order in which they were encrypted. The route to the other
    side changes only after a message that came over the new route was decrypted."""

    def __init__(
        self,
        node: Node,
        nursery: trio.Nursery,
        owner: Owner,
        machine: ChannelMachine,
        first: Message,
        addresses: tuple[Address, Address],
    ) -> None:
        self._node = node
        self._owner = owner
        self.machine = machine
        self.inner, self.outer = addresses
        # Until the peer is proved, only the connection of its first message may continue the handshake.
        self._first_origin = first.origin
        self._below = first.origin
        self._way_back: Route = first.return_route
        self._last_return: Route | None = None
        self._writer = PlaintextWriter()
        self._reader: PlaintextReader | None = None
        self.peer = first.origin.peer
        self.identity: PeerIdentity | None = None
        self.used_at_s = trio.current_time()
        self.gone_at_s: float | None = None
        self._nursery = nursery
        self._waits = False
        self._wait_scope = trio.CancelScope()
        self._failures = 0
        # The memory of the channel counts for the same limit as the memory of its connection.
        self._holdings = first.origin.holdings.beside(self.forget, lambda: self.end("memory"))
        self._usage: Usage = UNLIMITED
        self._refreshes = Bucket(REFRESHES_PER_S, REFRESHES_MAX)

    @property
    def is_open(self) -> bool:
        return self.machine.state is SecureChannelState.OPEN

    def stopped(self) -> None:
        # Also after a crash: whoever has this object cannot encrypt with it any more.
        self.machine.end()
        self._holdings.end()
        # Nothing more comes through the channel, so nobody needs to wait.
        self._wait_scope.cancel()
        self._owner.ended(self, "crashed")

    def demand(self, message: Message) -> Demand | None:
        """Returns NOTHING for a ciphertext, since the rights are checked when its plaintext goes to a worker. A
        plaintext is accepted from this node's own workers only."""
        return NOTHING if message.onward_route[0] == self.inner or message.origin.kind == "local" else None

    def receive(self, run: Sequence[Message]) -> None:
        route = run[0].onward_route
        # Mostly all messages of a run go in one direction, and share one route object.
        if all([message.onward_route is route for message in run]):
            arrived, leaving = (run, ()) if route[0] == self.inner else ((), run)
        else:
            arrived = [message for message in run if message.onward_route[0] == self.inner]
            leaving = [message for message in run if message.onward_route[0] != self.inner]
        if arrived:
            self._take(arrived)
        if leaving:
            self._send(leaving)
        self._note_held()

    # From the other side.

    def _take(self, run: Sequence[Message]) -> None:
        if self.machine.state is SecureChannelState.SENT_2:
            run = self._finish_handshake(run)
        at, count = 0, len(run)
        while at < count and self.is_open:
            # Messages over the known way are decrypted together. A message over another way is decrypted by itself.
            end = at
            while end < count and run[end].return_route is self._last_return:
                end += 1
            end = max(end, at + 1)
            highest = self.machine.highest_received
            plaintexts, refused = self.machine.open_many([message.payload for message in run[at:end]])
            for error in refused:
                self._owner.count_drop(error.reason)
            if plaintexts:
                self.used_at_s = trio.current_time()
                # Only a message that is authentic and newer than all others may move the way back.
                if run[at].return_route is not self._last_return and self.machine.highest_received > highest:
                    self._move(run[at])
                self._hand_on(plaintexts)
            at = end

    def _finish_handshake(self, run: Sequence[Message]) -> Sequence[Message]:
        """Handles messages until one of them is message 3. Returns the messages after it."""
        for position, message in enumerate(run):
            # Only the connection that began the handshake may finish it.
            if message.origin is not self._first_origin:
                self._owner.handshake_failed(message.origin, "other_connection")
                continue
            # Everybody who learns the address can send a message 3, so a wrong one does not end the handshake. After
            # HANDSHAKE_FAILURES_MAX wrong ones it ends, because each takes time to check.
            try:
                self.machine.receive_3(message.payload, self._owner.now_s())
            except HandshakeFailed as error:
                self._owner.handshake_failed(message.origin, error.reason)
                self._failures += 1
                if self._failures >= HANDSHAKE_FAILURES_MAX:
                    self.end("handshake_failed")
                    return []
                continue
            except PeerRefused as error:
                self._owner.refused(message.origin, error)
                # Until it gets the refusal of its identity, the other side believes that the channel is open.
                if error.close and message.return_route:
                    self._node.send(Message(message.return_route, (), error.close))
                self._owner.ended(self, error.reason, error.identity)
                return []
            self._open(message)
            return run[position + 1 :]
        return []

    def _open(self, message: Message) -> None:
        assert self.machine.peer is not None
        self.identity = self.machine.peer
        # Answers go over this route from now on, and the owner may refuse the channel for lack of room.
        self._way_back = message.return_route
        self.used_at_s = trio.current_time()
        refusal = self._owner.opened(self, self.identity, message.origin)
        if refusal is not None:
            self.end(refusal)
            return
        self._move(message)

    def _move(self, message: Message) -> None:
        """Sends later answers over the route by which this message came, for example over a new connection."""
        # The sender of an encrypted message gives no return route, so its route has only the hops that nodes have
        # added. The last hop, the other side's inner address, is known from message 3.
        self._last_return = message.return_route
        inner = self._way_back[-1:]
        way_back = message.return_route if message.return_route[-1:] == inner else (*message.return_route, *inner)
        if way_back == self._way_back and self._reader is not None and message.origin is self._below:
            return
        self._way_back, self._below = way_back, message.origin
        self.peer = message.origin.peer
        self._reader = PlaintextReader(self._origin(), self.outer)

    def _origin(self) -> Origin:
        self._usage = self._owner.usage_of(self, self._below.usage)
        header_bytes = len(HEAD.encode_routes(self._way_back, ()))
        return msgspec.structs.replace(
            self._below,
            kind="channel",
            identity=Identity("channel", str(self.identity)),
            usage=self._usage,
            frame_bytes_max=self._below.frame_bytes_max - AROUND_BYTES_MAX - header_bytes,
            # The first hop of the way back is the connection, and the last hop is the other side.
            hops=len(self._way_back) - 2,
            channel=self._holdings,
            below=lambda: self._below,
        )

    def _hand_on(self, plaintexts: Sequence[bytes]) -> None:
        """Delivers decrypted messages to workers of this node, and handles a Refresh or a Close among them."""
        at = 0
        while True:
            assert self._reader is not None
            # The order is kept: the messages before a Close are delivered, and those after it are dropped.
            messages, bad, at = self._reader.read(plaintexts, at)
            if bad:
                self._owner.count_drop("undecodable", bad)
            if messages:
                self._deliver(messages)
            if at == len(plaintexts) or not self._control(plaintexts[at]):
                return
            at += 1

    def _deliver(self, messages: list[Message]) -> None:
        # A channel ends here: its messages go to local workers, never to a connection or another node.
        # Most messages of a run share one route object, so few routes are looked at.
        for onward in {id(message.onward_route): message.onward_route for message in messages}.values():
            if not _is_local(onward):
                local_ones = [message for message in messages if _is_local(message.onward_route)]
                self._owner.count_drop("channel_forward", len(messages) - len(local_ones))
                messages = local_ones
                break
        full = [mailbox for mailbox in self._node.deliver_run(messages) if mailbox.full]
        # If the usage is that of the connection, the connection has counted the messages already.
        usage, is_over = self._usage, False
        is_limited = usage is not self._below.usage and (usage.is_rated or usage.counts_bytes)
        if is_limited and messages:
            now_s = trio.current_time()
            usage.spend(len(messages), sum(len(message.payload) for message in messages), now_s)
            is_over = usage.is_over or usage.delay_s(now_s)[0] > 0
        # One task waits for all reasons. Meanwhile the mailbox of the channel counts as full.
        own = self._node.find_mailbox(self.inner)
        if (full or is_over) and not self._waits and own is not None:
            self._waits = True
            own.hold()
            self._wait_scope = trio.CancelScope()
            self._nursery.start_soon(self._wait, own, full, usage if is_limited else None)

    async def _wait(self, own: Mailbox, full: list[Mailbox], usage: Usage | None) -> None:
        """Makes the senders to this channel wait, while workers are full or the identity exceeds its limits."""
        with self._wait_scope:
            for mailbox in full:
                await mailbox.wait_room()
            if usage is not None:
                await usage.wait_turn()
                await usage.wait_room()
            self._waits = False
            own.admit()

    def _control(self, plaintext: bytes) -> bool:
        now_s = trio.current_time()
        if plaintext != CLOSE:
            # Each Refresh costs the check of several signatures. Peers send one when they have changed their keys.
            if self._refreshes.room(now_s) < 1:
                self._owner.count_drop("refresh_rate")
                return True
            self._refreshes.spend(1, now_s)
        try:
            self.machine.take_control(plaintext)
        except (PlaintextRefused, IdentityRefused) as error:
            self._owner.count_drop(error.reason)
            return True
        if not self.is_open:
            self._owner.ended(self, "closed_by_peer")
        elif self.machine.peer is not None and self.machine.peer is not self.identity:
            self.identity = self.machine.peer
            self._owner.renewed(self, self.identity)
        return self.is_open

    # To the other side.

    def _send(self, run: Sequence[Message]) -> None:
        # Messages of remote origin are dropped: otherwise, a peer that learns the outer address could send as this
        # node.
        foreign = [message for message in run if message.origin is not HERE and message.origin.kind != "local"]
        if foreign:
            run = [message for message in run if message.origin.kind == "local"]
            self._owner.count_drop("channel_forward", len(foreign))
        if not self.is_open:
            self._owner.count_drop("channel_closed", len(run))
            return
        if not run:
            return
        self.used_at_s = trio.current_time()
        plaintexts, too_large = self._writer.write(run)
        if too_large:
            self._owner.count_drop("frame_too_large", too_large)
        try:
            sealed = self.machine.seal_many(plaintexts)
        except NoncesUsedUp:
            self._owner.ended(self, "nonces")
            return
        self._node.deliver_run([Message(self._way_back, (), data) for data in sealed])

    # The end.

    def end(self, reason: str) -> None:
        data = self.machine.close()
        if data:
            self._node.send(Message(self._way_back, (), data))
        self._owner.ended(self, reason)

    def note_connection(self, now_s: float) -> float:
        """Returns for how many seconds the connection of this channel has been gone; 0 if it is there."""
        if self._node.is_registered(self._way_back[0]):
            self.gone_at_s = None
            return 0.0
        if self.gone_at_s is None:
            self.gone_at_s = now_s
        return now_s - self.gone_at_s

    def forget(self) -> None:
        self._writer.frames.forget()
        if self._reader is not None:
            self._reader.forget()
        self._note_held()

    def _note_held(self) -> None:
        known_bytes = self._writer.frames.known_bytes + (self._reader.known_bytes if self._reader is not None else 0)
        if known_bytes != self._holdings.header_bytes:
            self._holdings.note(known_bytes, 0)


def _is_local(onward: Route) -> bool:
    return onward[0].type == LOCAL and not onward[0].value.startswith(CONNECTION_PREFIX)
