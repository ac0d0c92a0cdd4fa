"""SecureChannels: all secure channels of one node, and the listener that begins them.

Unless the operator trusts somebody, the listener answers nothing."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog
import trio

from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from ockam.actors.node import Node
from ockam.actors.worker import NEVER, Worker
from ockam.identity.channel.admission_machine import AdmissionMachine, ChannelLimits, ChannelStatistics
from ockam.identity.channel.errors import HandshakeFailed, IdentityFileError, PeerRefused
from ockam.identity.channel.identity_history import PeerIdentity
from ockam.identity.channel.trust_list import KnownHistories, TrustList
from ockam.identity.identity import Identity
from ockam.identity.rules.audit import Audit
from ockam.identity.rules.audit_lines import Entry
from ockam.identity.rules.rights import NOTHING, Demand
from ockam.log_rate import LogRate
from ockam.quotas.usage import Usage, party_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from ockam.identity.channel.proof import OwnIdentity
    from ockam.identity.channel.workers.channel import ChannelWorker

LISTENER = "secure_channel"
ADDRESSES = (LISTENER, "secure_channel_listener", "api")
"""The addresses of the listener that other Ockam programs expect: the default of Ockam for Elixir, that of Ockam's
examples, and that of nodes which the command `ockam` makes."""
WATCH_INTERVAL_S = 0.5
"""The interval between two checks of the trust list. A removed identity loses its channels within this time."""
IDLE_INTERVALS = 20

NOBODY_TRUSTED = (
    "this node trusts nobody, so it opens no secure channel: `stream-node trust add IDENTIFIER` trusts the other end, "
    "whose identifier `stream-node identity show` prints there"
)

CloseIdentities = Callable[[Callable[[Identity], bool], str], int]

logger = structlog.get_logger(__name__)


class SecureChannels:
    """All secure channels of one node. `start` registers the listener.

    identity: returns the identity of this node; it is called for each handshake, and raises IdentityFileError.
    known: the identities that have replaced a key. audit: the log of refused peers and of changes of `trust`.
    close_identities: closes the connections inside the node of the chosen identities, see
    `TcpTransport.close_identities`.
    now_s: returns seconds since 1970. new_id: returns 8 random bytes as hex. ephemeral: returns a new key; None: random
    ones."""

    def __init__(
        self,
        node: Node,
        nursery: trio.Nursery,
        identity: Callable[[int], OwnIdentity],
        trust: TrustList,
        *,
        limits: ChannelLimits | None = None,
        known: KnownHistories | None = None,
        audit: Audit | None = None,
        close_identities: CloseIdentities = lambda is_meant, reason: 0,
        now_s: Callable[[], int] = lambda: int(time.time()),
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        ephemeral: Callable[[], X25519PrivateKey] | None = None,
    ) -> None:
        self._node = node
        self._nursery = nursery
        self._identity = identity
        self.trust = trust
        self._limits = limits if limits is not None else ChannelLimits()
        self._known = known if known is not None else KnownHistories(None)
        self._audit = audit
        self.now_s = now_s
        self._new_id = new_id
        self._ephemeral = ephemeral
        self._close_identities = close_identities
        self._admission: AdmissionMachine[ChannelWorker] = AdmissionMachine(self._limits)
        self._usages: dict[ChannelWorker, list[Usage]] = {}
        self._lines = LogRate()
        self._opened = 0
        self._refused: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def start(self, addresses: Sequence[str] = ADDRESSES) -> None:
        self._node.register([local(each) for each in addresses], lambda: ListenerWorker(self))

    def stop(self) -> None:
        for channel in list(self._admission.channels):
            channel.end("node_stops")

    def end_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        with self._node.batch():
            return self._end_where(lambda channel, peer: is_meant(Identity("channel", str(peer))), reason)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            open=len(self._admission.channels),
            handshakes=len(self._admission.handshakes),
            opened=self._opened,
            refused=dict(self._refused),
            ended=dict(self._ended),
            dropped=dict(self._dropped),
        )

    def check(self) -> None:
        self._admission.check()
        for channel in (*self._admission.channels, *self._admission.handshakes):
            channel.machine.check()

    # For the listener.

    def begin(self, message: Message) -> None:
        # A connection with an identity of its own is counted by the identity, any other by its address.
        party = party_key(message.origin.identity, message.origin.peer)
        refusal = None
        if self.trust.is_closed:
            refusal = "closed"
        elif not message.return_route:
            refusal = "no_return_route"
        elif not self._admission.may_begin(party, trio.current_time()):
            refusal = "rate"
        if refusal is not None:
            self._refuse(message.origin, refusal)
            return
        # A listener that trusts nobody never loads cryptography, which takes 8 MB.
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        from ockam.identity.channel.channel_machine import ChannelMachine
        from ockam.identity.channel.workers.channel import ChannelWorker

        # The machine reads message 1. Nothing is registered before that has succeeded.
        now_s = self.now_s()
        try:
            machine = ChannelMachine(self._identity(now_s), self._refusal)
            answer = machine.receive_1(message.payload, (self._ephemeral or X25519PrivateKey.generate)())
        except IdentityFileError as error:
            self._refuse(message.origin, "no_identity")
            self._lines.log(logger.error, "channel_identity_unusable", **message.origin.who, reason=str(error))
            return
        except HandshakeFailed as error:
            self._refuse(message.origin, error.reason)
            return
        inner, outer = local(self._new_id()), local(self._new_id())
        channel = ChannelWorker(self._node, self._nursery, self, machine, message, (inner, outer))
        # An old handshake gives way to the new one.
        for given in self._admission.begin(channel, message.origin.peer):
            self._ended["gave_way"] += 1
            given.end("gave_way")
        # The worker is registered before message 2 is sent, because message 3 comes to its address.
        self._node.register((inner, outer), lambda: channel, restarts=NEVER)
        self._node.call_later(self._limits.handshake_s_max, lambda: self._give_up(channel))
        self._node.deliver(Message(message.return_route, (inner,), answer))

    def _refuse(self, origin: Origin, reason: str) -> None:
        self._refused[reason] += 1
        self._note_refusal(origin, "", reason, NOBODY_TRUSTED if reason == "closed" else "")

    def _give_up(self, channel: ChannelWorker) -> None:
        if channel in self._admission.handshakes:
            channel.end("handshake_timeout")

    def watch(self, interval: int) -> None:
        """Ends channels whose identity is not trusted any more. If `interval`, the number of the call, is a multiple of
        IDLE_INTERVALS, also ends channels that are idle or expired, or have lost their connection."""
        if self.trust.refresh():
            ended = self._end_where(lambda channel, peer: self.trust.refusal(peer) is not None, "not_trusted")
            if self._audit is not None:
                self._audit.note(Entry("trust_changed", reason=f"{self.trust}; {ended} channels ended"))
        if self.trust.lost:
            # A worker acts for an identity over a connection inside the node, which stays when the channel ends. The
            # worker can open another one for a message that has waited. Identities that this member of a cluster has
            # never trusted, because another member does, keep theirs.
            lost = self.trust.lost
            self._close_identities(lambda each: each.source == "channel" and each.name in lost, "not_trusted")
        if interval % IDLE_INTERVALS:
            return
        # The proof of the other side was valid at the handshake, and ends later.
        unix_s = self.now_s()
        self._end_where(lambda channel, peer: channel.machine.expires_s < unix_s, "expired")
        now_s = trio.current_time()
        for channel in list(self._admission.channels):
            if now_s - channel.used_at_s > self._limits.idle_s_max:
                channel.end("idle")
            elif channel.note_connection(now_s) > self._limits.gone_s_max:
                channel.end("connection_gone")
            # A channel that is idle for some seconds frees the memory of its routes.
            elif now_s - channel.used_at_s > IDLE_INTERVALS * WATCH_INTERVAL_S:
                channel.forget()

    # For the channels.

    def opened(self, channel: ChannelWorker, peer: PeerIdentity, origin: Origin) -> str | None:
        """Records a successful handshake. Returns the reason if there is no room for the channel, else None."""
        refusal = self._admission.open(channel) or self._take(channel, peer, origin)
        if refusal is not None:
            self._refused[refusal] += 1
            self._note_refusal(origin, str(peer), refusal)
            return refusal
        self._opened += 1
        logger.info("channel_opened", peer=channel.peer, identity=str(peer))
        self.renewed(channel, peer)
        return None

    def _take(self, channel: ChannelWorker, peer: PeerIdentity, origin: Origin) -> str | None:
        """Counts a channel for the peer's identity and that of its connection. Returns why if one has too many."""
        # Both count, because a peer can make any number of identities of its own if everybody is trusted.
        own = self._node.usages.get(str(Identity("channel", str(peer))), trio.current_time())
        taken: list[Usage] = []
        for usage in (origin.usage, own):
            if usage.take("channels_max", channel.peer) is not None:
                for each in taken:
                    each.give_back("channels_max")
                return "identity_channels_max"
            taken.append(usage)
        self._usages[channel] = taken
        return None

    def usage_of(self, channel: ChannelWorker, below: Usage) -> Usage:
        """Returns the usage of the channel's messages: the identity's if the trust list names it, else `below`."""
        taken = self._usages.get(channel)
        named = channel.identity is not None and self.trust.is_named(channel.identity)
        return taken[1] if taken is not None and named else below

    def refused(self, origin: Origin, error: PeerRefused) -> None:
        self._refused[error.reason] += 1
        self._note_refusal(origin, error.identity, error.reason, str(error))

    def handshake_failed(self, origin: Origin, reason: str) -> None:
        self.count_drop(reason)
        self._note_refusal(origin, "", reason)

    def renewed(self, channel: ChannelWorker, peer: PeerIdentity) -> None:
        """Retains the history of an identity. If it has replaced its key, ends its channels with older keys."""
        if self._known.learn(peer):
            logger.info("channel_identity_renewed", peer=channel.peer, identity=str(peer), changes=len(peer.changes))
            self._end_where(lambda other, theirs: self._known.refusal(theirs) is not None, "key_replaced")

    def ended(self, channel: ChannelWorker, reason: str, shown: str = "") -> None:
        """Records the end of a channel or handshake, and stops its worker. Safe to repeat."""
        known = channel in self._admission.channels or channel in self._admission.handshakes
        if not known and not self._node.is_registered(channel.inner):
            return
        self._admission.remove(channel)
        for usage in self._usages.pop(channel, ()):
            usage.give_back("channels_max")
        if known:
            self._ended[reason] += 1
            logger.info(
                "channel_ended",
                peer=channel.peer,
                identity=str(channel.identity or shown or "none shown"),
                reason=reason,
            )
        self._node.unregister(channel.inner)

    def _refusal(self, peer: PeerIdentity) -> str | None:
        return self.trust.refusal(peer) or self._known.refusal(peer)

    def _note_refusal(self, origin: Origin, identifier: str, reason: str, text: str = "") -> None:
        """Logs and audits a refusal, both at a bounded rate. identifier: the peer's, or empty."""
        self._lines.log(logger.warning, "channel_refused", **origin.who, reason=reason, text=text or reason)
        if self._audit is not None:
            # Everybody can make identifiers, so a refusal counts for the identity or the address of the connection.
            party = party_key(origin.identity, origin.peer)
            identity = Identity("channel", identifier) if identifier else origin.identity
            self._audit.refused(Entry("channel_refused", str(identity), origin.peer, reason=reason), party)

    def _end_where(self, is_meant: Callable[[ChannelWorker, PeerIdentity], bool], reason: str) -> int:
        known = [(each, each.identity) for each in self._admission.channels if each.identity is not None]
        meant = [channel for channel, peer in known if is_meant(channel, peer)]
        for channel in meant:
            channel.end(reason)
        return len(meant)

    def count_drop(self, reason: str, count: int = 1) -> None:
        self._dropped[reason] += count


class ListenerWorker(Worker):
    def __init__(self, channels: SecureChannels) -> None:
        self._channels = channels
        self._intervals = 0

    def started(self) -> None:
        self.context.call_later(WATCH_INTERVAL_S, self._watch)

    def demand(self, message: Message) -> Demand:
        """Returns NOTHING: the handshake proves the sender's identity, and then the trust list decides."""
        return NOTHING

    def handle(self, message: Message) -> None:
        self._channels.begin(message)

    def _watch(self) -> None:
        self._intervals += 1
        self._channels.watch(self._intervals)
        self.context.call_later(WATCH_INTERVAL_S, self._watch)
