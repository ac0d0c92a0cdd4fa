"""ChannelConnection: a `ClientConnection` whose messages go through a secure channel to the node with the services.

The core sees routes and messages as they are inside the channel; nodes on the route see the route to that node and
encrypted bytes.

    core ── route inside, payload ──▶ ChannelConnection ── frame: route to the other end | nonce | ciphertext ──▶ shell

A connection begins with a handshake; until it has succeeded, `wire` is None, so that the core sends nothing. A new
connection, silence and a Close of the other side each begin a new handshake with new keys. Nothing that was encrypted
is ever sent again: the core repeats requests, which are encrypted anew.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.actors.address import Address, Route, format_route, local
from ockam.actors.message import HERE, Message
from ockam.errors import FrameTooLarge
from ockam.identity.channel.channel_machine import ChannelMachine, SecureChannelState
from ockam.identity.channel.errors import HandshakeFailed, IdentityRefused, NoncesUsedUp, PeerRefused, PlaintextRefused
from ockam.identity.channel.identity_history import PeerIdentity, format_identifier
from ockam.identity.channel.messages import PLAINTEXT, PlaintextReader, PlaintextWriter
from ockam.identity.channel.proof import OwnIdentity
from ockam.identity.channel.transport import OVERHEAD_BYTES
from ockam.transport.frames import BadFrame
from ockam.transport.wire import Wire
from stream_client.core.client_connection import ClientConnection
from stream_client.errors import (
    ChannelRefused,
    ChannelSilent,
    ClientError,
    ConnectionLost,
    PeerNotTrusted,
    RequestRefused,
)

HANDSHAKE_CHECKS = 2
"""The checks for late answers (`ClientCore.check_progress`) after which an unanswered handshake begins anew."""
SILENT_HANDSHAKES_MAX = 3
"""The unanswered handshakes after which requests fail, if no channel has ever worked. A node that trusts no identity,
or has no listener for secure channels, does not answer."""
REFUSED_MAX = 2
"""The channels in a row that the other side ended before it sent a message, after which this client's identity counts
as refused. One is not enough, because a node that stops ends its channels too."""


class ChannelSettings(msgspec.Struct, frozen=True):
    """The settings and the sources of time and randomness with which a client opens a channel.

    peers: the identifiers, 32 bytes each. The other end must have one of them.
    route: the route from the node that the client connects to, to the listener at the other end.
    now_s: returns seconds since 1970.
    new_id: returns 8 random bytes as hex.
    """

    own: OwnIdentity
    peers: frozenset[bytes]
    route: Route
    now_s: Callable[[], int] = lambda: int(time.time())
    ephemeral: Callable[[], X25519PrivateKey] = X25519PrivateKey.generate
    new_id: Callable[[], str] = lambda: secrets.token_hex(8)


class ChannelConnection(ClientConnection):
    """The client's side of secure channels. It opens a new channel on each new connection, by a handshake.

    Invariant: `wire` is set exactly while the channel is open. Each handshake has a new ephemeral key and a new return
    address, so messages of an earlier channel are not taken for those of a later one.
    """

    is_encrypted = True

    def __init__(self, settings: ChannelSettings) -> None:
        super().__init__()
        self._settings = settings
        self._machine: ChannelMachine | None = None
        self._inner = local(b"")
        self._plaintexts = PlaintextReader(HERE, None)
        # The waiting frames, in the order in which they are encrypted together and sent. Each begins with the encoded
        # routes to the other end of the channel.
        self._groups: list[FrameGroup] = []
        self._group = NO_GROUP
        self._frame_header = b""
        self._writer = PlaintextWriter()
        self._checks = self._silent = self._refused = 0
        self._worked = self._has_worked = self._has_opened = self._is_ended = False
        self.handshakes = 0

    @property
    def has_worked(self) -> bool:
        return self._has_worked

    @property
    def peer(self) -> PeerIdentity | None:
        return None if self._machine is None else self._machine.peer

    def check(self) -> None:
        super().check()
        is_open = self._machine is not None and self._machine.state is SecureChannelState.OPEN
        assert is_open == (self.wire is not None)
        if self._machine is not None:
            self._machine.check()
            assert self.framing is not None
        assert self.wire is not None or not self._groups

    def _counted_bytes(self) -> int:
        unsealed = sum(group.frame_bytes * len(group.plaintexts) for group in self._groups)
        return super()._counted_bytes() + unsealed

    def connected(self, wire: Wire, *, greeted: bool = False) -> None:
        super().connected(wire, greeted=greeted)
        # The base class sets `wire`. Requests wait for the channel, so it is taken away until the handshake has
        # succeeded.
        self.wire = None
        if self.framing is not None:
            self._silent = 0
            self._begin()

    def header(self, route: Route, return_address: Address) -> bytes:
        return b"" if self.wire is None else PLAINTEXT.encode_routes(route, (return_address,))

    def _put_frame(self, header: bytes, payload: bytes) -> RequestRefused | None:
        # The other side may have ended the channel a moment ago. Requests are sent again through the next one.
        if self.wire is None:
            return None
        # Most frames differ from the one before in their payload only, so they belong to the same group.
        group = self._group
        if header is not group.header or len(payload) != group.payload_bytes:
            try:
                group = self._group = self._begin_group(header, len(payload))
            except FrameTooLarge as error:
                return RequestRefused(f"too large to send through the secure channel: {error}")
        group.plaintexts.append(group.head + payload + group.tail)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += group.frame_bytes
        return None

    def _begin_group(self, header: bytes, payload_bytes: int) -> FrameGroup:
        """Returns a new group at the end of the waiting frames. The caller appends plaintexts to it. Raises
        FrameTooLarge; a frame that is too large uses up no nonce."""
        inner = self._writer.around(header, payload_bytes)
        sealed_bytes = len(inner[0]) + payload_bytes + len(inner[1]) + OVERHEAD_BYTES
        outer = self._heads.around(self._frame_header).get(sealed_bytes)
        if outer is None:
            outer = self._heads.make(self._frame_header, sealed_bytes)
        frame_bytes = len(outer[0]) + sealed_bytes + len(outer[1])
        group = FrameGroup(header, payload_bytes, frame_bytes, *inner, *outer)
        self._groups.append(group)
        return group

    def _seal(self, machine: ChannelMachine) -> bytes:
        """Removes all waiting frames, and returns their bytes. Raises NoncesUsedUp; then the frames are dropped."""
        # A group stays empty if an exception, such as that of a signal handler, interrupted the caller.
        groups, self._groups = [group for group in self._groups if group.plaintexts], []
        sealed = machine.seal_many([plaintext for group in groups for plaintext in group.plaintexts])
        parts: list[bytes] = []
        at = 0
        for group in groups:
            end = at + len(group.plaintexts)
            # Between two messages stand the end of one frame and the beginning of the next.
            between = group.frame_tail + group.frame_head
            parts += (group.frame_head, between.join(sealed[at:end]), group.frame_tail)
            at = end
        return b"".join(parts)

    def data_to_send(self) -> bytes:
        # Open batches become frames first: they are encrypted like all others.
        if self._batches:
            self._close_batches()
        if self._group is not NO_GROUP:
            self._group = NO_GROUP
            assert self._machine is not None
            try:
                self._outgoing.append(self._seal(self._machine))
            except NoncesUsedUp as error:
                # The core sends the requests in these frames again through the next channel.
                self._lose(ConnectionLost(str(error)))
        return super().data_to_send()

    def messages(self, data: bytes) -> Sequence[Message]:
        try:
            arrived = super().messages(data)
        # The messages before the fault came through the channel, and requests wait for them.
        except BadFrame as error:
            found = self._opened(error.messages)
            raise BadFrame(error, tuple(found)) from error
        return self._opened(arrived)

    def settle(self) -> None:
        """Ends the channel if the other side has closed it, or if the proof of its identity has expired. To be called
        when the messages that came before have been handled."""
        if not self._is_ended:
            machine = self._machine
            # The proof of the other side was valid at the handshake, and ends later. A new handshake has a new proof.
            if self.wire is not None and machine is not None and self._settings.now_s() > machine.expires_s:
                self._lose(ConnectionLost("the proof of the other end has ended"))
            return
        self._is_ended = False
        # A channel that has worked is made again at once. If no message came through it, its end may be a refusal.
        if self._worked:
            self._refused = 0
            self._lose(ConnectionLost("the other end has ended the secure channel"))
            return
        self._refused += 1
        if self._refused < REFUSED_MAX:
            self._lose(ConnectionLost("the other end has ended the secure channel at once"))
            return
        own = self._settings.own
        # Several channels in a row ended without a message, as at a node whose rules refuse our identity.
        refused = (
            f"the peer did not accept our identity {own}: `stream-node trust add {own}` on that node would accept it"
        )
        self._lose(ChannelRefused(refused), begins=False)

    def check_channel(self) -> ClientError | None:
        """Begins a new handshake if the last one is unanswered for too long. To be called at intervals while `wire` is
        None. After too many handshakes, if no channel has ever worked, returns the error of all requests."""
        if self.framing is None:
            return None
        self._checks += 1
        if self._checks < HANDSHAKE_CHECKS:
            return None
        # The handshake, or its answer, was perhaps lost. The next one has new keys.
        self._silent += 1
        self._begin()
        # A node that has answered before may be away for a while. One that never answered probably never will.
        if self._has_worked or self._silent < SILENT_HANDSHAKES_MAX:
            return None
        return self.silence()

    def silence(self) -> ClientError:
        """Returns the error for a listener that does not answer, or that took the handshake and then said nothing.
        Ockam's own nodes do not report that they refuse a client."""
        if self._has_opened:
            own = self._settings.own
            return ChannelRefused(
                f"the peer did not accept our identity {own}: it took the handshake, and has been silent since. If the "
                "peer accepts this identity, the service has another name there (--service)"
            )
        return ChannelSilent(
            f"no secure channel at {format_route(self._settings.route)}: nobody answers there. A node answers only if "
            f"it trusts somebody; on that node, `stream-node trust add {self._settings.own}` trusts this client"
        )

    def renew(self, error: ClientError) -> None:
        self._lose(error)

    def _forget(self) -> None:
        # The machine ends first: nothing may be encrypted any more when the base class calls back.
        self._end_machine()
        super()._forget()

    def _begin(self) -> None:
        self._end_machine()
        # The handshake gets a new return address, so late messages of an earlier channel are not taken for its own.
        settings = self._settings
        self._checks = 0
        self._worked = self._is_ended = False
        self.handshakes += 1
        self._machine = ChannelMachine(settings.own, self._judge)
        self._inner = local(settings.new_id())
        self._send(settings.route, (self._inner,), self._machine.begin(settings.ephemeral()))

    def _judge(self, peer: PeerIdentity) -> str | None:
        if peer.identifier in self._settings.peers:
            return None
        expected = " or ".join(sorted(map(format_identifier, self._settings.peers)))
        return f"the other end is {peer}, and not {expected}; nothing was sent to it"

    def _send(self, route: Route, return_route: Route, payload: bytes) -> None:
        assert self.framing is not None
        head, tail = self._heads.make(self.framing.encode_routes(route, return_route), len(payload))
        self._put(head + payload + tail)

    def _opened(self, arrived: Sequence[Message]) -> list[Message]:
        """Returns the messages inside these frames. Messages of a handshake are handled and not returned."""
        encrypted: list[bytes] = []
        inner = self._inner
        onward: Route | None = None
        is_ours = False
        for message in arrived:
            # Frames of one read mostly share one route object, so it is compared once for a whole run of them.
            if message.onward_route is not onward:
                onward = message.onward_route
                is_ours = onward[0] == inner
            # Everything else is late, or not meant for this client.
            if not is_ours or self._is_ended:
                continue
            if self.wire is None:
                self._shake(message)
            else:
                encrypted.append(message.payload)
        return self._decrypted(encrypted) if encrypted else []

    def _decrypted(self, encrypted: list[bytes]) -> list[Message]:
        """Returns the messages inside these encrypted messages, up to a Close, without those that are not valid."""
        assert self._machine is not None
        plaintexts, _ = self._machine.open_many(encrypted)
        messages: list[Message] = []
        at = 0
        # The reader stops at a control message, which concerns the channel itself. Reading goes on after it.
        while at < len(plaintexts) and not self._is_ended:
            found, _, end = self._plaintexts.read(plaintexts, at)
            if end > at:
                messages += found
                self._worked = self._has_worked = True
                self._refused = 0
            if end < len(plaintexts):
                self._control(plaintexts[end])
            at = end + 1
        return messages

    def _shake(self, message: Message) -> None:
        machine = self._machine
        if machine is None or not message.return_route:
            return
        # A forged answer is ignored, since the genuine one may still come. A genuine answer whose identity is refused
        # ends the attempt.
        try:
            answer = machine.receive_2(message.payload, self._settings.now_s())
        except HandshakeFailed:
            return
        except PeerRefused as error:
            self._machine = None
            self.on_channel(PeerNotTrusted(str(error)))
            return
        # The answer must leave before the core sends its requests through the channel that it opens.
        self._send(message.return_route, (self._inner,), answer)
        assert self.framing is not None
        # From here on all messages of this address are encrypted, and requests can be sent.
        self._plaintexts = PlaintextReader(HERE, None)
        self._frame_header = self.framing.encode_routes(message.return_route, ())
        self._writer = PlaintextWriter()
        self.wire = self.framing
        self._has_opened = True
        self._silent = 0
        self.on_channel(None)

    def _control(self, plaintext: bytes) -> None:
        assert self._machine is not None
        try:
            self._machine.take_control(plaintext)
        except (PlaintextRefused, IdentityRefused):
            return
        # The messages before this one are handled first; then `settle` ends the channel. Nothing is encrypted any more.
        self._is_ended = self._machine.state is SecureChannelState.CLOSED
        if self._is_ended:
            self._drop_unsealed()
            self.wire = None

    def _lose(self, error: ClientError, *, begins: bool = True) -> None:
        # The core is informed before the next handshake, so that its requests wait for the new channel.
        self._end_machine()
        self.on_channel(error)
        if self.framing is None:
            return
        if begins:
            self._begin()
        else:
            # The next check begins the handshake, so a node that refuses us is not asked in a loop.
            self._checks = 0

    def _end_machine(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.end()
        self._drop_unsealed()
        self.wire = None

    def _drop_unsealed(self) -> None:
        self._groups, self._group = [], NO_GROUP
        self._drop_batches()
        self.outgoing_bytes = sum(map(len, self._outgoing))


class FrameGroup(msgspec.Struct, eq=False):
    """A row of waiting frames that differ only in the content of their payloads.

    header: the encoded routes inside the channel, a result of `ChannelConnection.header`.
    payload_bytes, frame_bytes: the size of each payload, and the size of each frame.
    head, tail: the bytes of each plaintext before and after the payload.
    frame_head, frame_tail: the bytes of each frame before and after the encrypted message.
    """

    header: bytes
    payload_bytes: int
    frame_bytes: int
    head: bytes
    tail: bytes
    frame_head: bytes
    frame_tail: bytes
    plaintexts: list[bytes] = []


NO_GROUP = FrameGroup(b"", -1, 0, b"", b"", b"", b"")
"""The value while no group is begun. No frame belongs to it, because no payload has the size -1."""
