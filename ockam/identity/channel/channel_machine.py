"""ChannelMachine: one end of one secure channel, from the first message of the handshake to its end.

It reads no sockets and no clock, and knows no routes; the ephemeral key and the time are parameters. A machine is never
copied and never stored: a copy would use the same keys with the same nonces again, which destroys all protection.

    initiator   NEW --begin--> SENT_1 --receive_2--> OPEN
    responder   NEW --receive_1--> SENT_2 --receive_3--> OPEN        every state --> CLOSED"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.identity.channel.errors import (
    ChannelClosed,
    CiphertextRefused,
    HandshakeFailed,
    IdentityRefused,
    PeerRefused,
)
from ockam.identity.channel.identity_history import PeerIdentity
from ockam.identity.channel.messages import CLOSE, PAYLOAD_HEAD, read_control
from ockam.identity.channel.noise import NoiseHandshake
from ockam.identity.channel.proof import OwnIdentity, read_proof
from ockam.identity.channel.transport import Opener, Sealer


class SecureChannelState(Enum):
    NEW = "new"
    SENT_1 = "sent 1"
    SENT_2 = "sent 2"
    OPEN = "open"
    CLOSED = "closed"


class SecureChannelEvent(Enum):
    BEGUN = "this side has sent message 1"
    REQUESTED = "a valid message 1 has come, and message 2 was sent"
    PROVED = "the other side has proved an identity that this side accepts"
    REFUSED = "the other side has proved nothing, or an identity that this side does not accept"
    CLOSE_RECEIVED = "the other side has ended the channel"
    ENDED = "this side ends the channel, by choice, by a timeout or because of a fault of its own"


# In both states, this side waits for the proof of the other side.
_PROVING = {
    SecureChannelEvent.PROVED: SecureChannelState.OPEN,
    SecureChannelEvent.REFUSED: SecureChannelState.CLOSED,
    SecureChannelEvent.ENDED: SecureChannelState.CLOSED,
}
TRANSITIONS: dict[SecureChannelState, dict[SecureChannelEvent, SecureChannelState]] = {
    SecureChannelState.NEW: {
        SecureChannelEvent.BEGUN: SecureChannelState.SENT_1,
        SecureChannelEvent.REQUESTED: SecureChannelState.SENT_2,
        SecureChannelEvent.ENDED: SecureChannelState.CLOSED,
    },
    SecureChannelState.SENT_1: _PROVING,
    SecureChannelState.SENT_2: _PROVING,
    SecureChannelState.OPEN: {
        SecureChannelEvent.CLOSE_RECEIVED: SecureChannelState.CLOSED,
        SecureChannelEvent.ENDED: SecureChannelState.CLOSED,
    },
    SecureChannelState.CLOSED: {SecureChannelEvent.ENDED: SecureChannelState.CLOSED},
}
"""For each state, the next state after each event. An event that is missing for a state is a mistake of this code."""

Trust = Callable[[PeerIdentity], str | None]
"""Returns None if an identity is accepted, else a short text that says why it is not."""


class ChannelMachine:
    """One end of one channel.

    peer: the identity of the other side; None until it is proved and accepted.
    expires_s: until when the other side's proof is valid, in seconds since 1970. The owner must end the channel then.
    own, trust: the identity of this side, and the decision about others. ephemeral: a new key, used for nothing else.

    Invariant: the handshake exists exactly in SENT_1 and SENT_2, and the two keys and the peer exactly in OPEN. So a
    machine that has ended can neither encrypt nor decrypt."""

    __slots__ = ("_handshake", "_opener", "_own", "_sealer", "_trust", "expires_s", "peer", "state")

    def __init__(self, own: OwnIdentity, trust: Trust) -> None:
        self._own = own
        self._trust = trust
        self._handshake: NoiseHandshake | None = None
        self._sealer: Sealer | None = None
        self._opener: Opener | None = None
        self.peer: PeerIdentity | None = None
        self.expires_s = 0
        self.state = SecureChannelState.NEW

    def check(self) -> None:
        assert (self._handshake is not None) == (self.state in (SecureChannelState.SENT_1, SecureChannelState.SENT_2))
        for part in (self._sealer, self._opener, self.peer):
            assert (part is not None) == (self.state is SecureChannelState.OPEN)
        if self._opener is not None:
            self._opener.check()

    # The handshake.

    def begin(self, ephemeral: X25519PrivateKey) -> bytes:
        self._handshake = NoiseHandshake(self._own.static, ephemeral)
        self._change(SecureChannelEvent.BEGUN)
        return self._handshake.write_1()

    def receive_1(self, data: bytes, ephemeral: X25519PrivateKey) -> bytes:
        """Reads message 1 and returns message 2. Raises HandshakeFailed; the state is then still NEW."""
        assert self.state is SecureChannelState.NEW
        # Only a handshake that has succeeded so far is retained, so a wrong message 1 changes nothing.
        handshake = NoiseHandshake(self._own.static, ephemeral)
        handshake.read_1(data)
        answer = handshake.write_2(self._own.proof)
        self._handshake = handshake
        self._change(SecureChannelEvent.REQUESTED)
        return answer

    def receive_2(self, data: bytes, now_s: int) -> bytes:
        """Reads message 2 and returns message 3; the channel is then open. now_s: seconds since 1970. Raises
        HandshakeFailed if the message is not a message 2 of this handshake; a correct one is still accepted later.
        Raises PeerRefused if the other side is not accepted; then the channel has ended."""
        handshake = self._expect(SecureChannelState.SENT_1)
        proof = handshake.read_2(data)
        # The message has decrypted, so it is of this handshake. From here on a refusal is final.
        try:
            peer = self._accept(proof, handshake.remote_static, now_s)
        except PeerRefused:
            self._end(SecureChannelEvent.REFUSED)
            raise
        # The other side has proved itself first. Message 3 proves this side; then both sides have the keys.
        answer = handshake.write_3(self._own.proof)
        self._open(handshake, peer, is_initiator=True)
        return answer

    def receive_3(self, data: bytes, now_s: int) -> None:
        """Reads message 3; the channel is then open. now_s: seconds since 1970. Raises HandshakeFailed as `receive_2`
        does. Raises PeerRefused if the other side is not accepted; then the channel has ended, and the caller must send
        `close` of the error, an encrypted Close."""
        handshake = self._expect(SecureChannelState.SENT_2)
        # A message 3 that does not decrypt changes nothing: everybody can send one.
        proof = handshake.read_3(data)
        try:
            peer = self._accept(proof, handshake.remote_static, now_s)
        except PeerRefused as error:
            # The keys are known, so the refusal can be reported. Otherwise the other side would believe that the
            # channel is open. The Close is the first and only message of this key: the machine ends here.
            error.close = Sealer(handshake.keys(is_initiator=False).send).seal(CLOSE)
            self._end(SecureChannelEvent.REFUSED)
            raise
        self._open(handshake, peer, is_initiator=False)

    def _expect(self, state: SecureChannelState) -> NoiseHandshake:
        if self.state is not state or self._handshake is None:
            raise HandshakeFailed("unauthentic", f"a message of a handshake came in the state {self.state.value}")
        return self._handshake

    def _accept(self, proof: bytes, remote_static: bytes, now_s: int) -> PeerIdentity:
        try:
            # First the proof itself is checked: signatures, times, and that its key is the one of this handshake.
            peer, self.expires_s = read_proof(proof, remote_static, now_s)
        except IdentityRefused as error:
            raise PeerRefused(error.reason, f"the other side did not prove its identity: {error}") from error
        # Then the operator decides whether this identity may have a channel at all.
        refusal = self._trust(peer)
        if refusal is not None:
            raise PeerRefused("not_trusted", refusal, identity=str(peer))
        return peer

    def _open(self, handshake: NoiseHandshake, peer: PeerIdentity, *, is_initiator: bool) -> None:
        keys = handshake.keys(is_initiator=is_initiator)
        self._sealer, self._opener = Sealer(keys.send), Opener(keys.receive)
        # The keys replace the handshake. Its ephemeral key is forgotten: a static key stolen later decrypts nothing.
        self._handshake, self.peer = None, peer
        self._change(SecureChannelEvent.PROVED)

    # Messages.

    def seal_many(self, plaintexts: Sequence[bytes]) -> list[bytes]:
        """Returns the encrypted messages. Send them in this order, each once. Raises ChannelClosed and NoncesUsedUp."""
        if self._sealer is None:
            raise self._closed()
        return self._sealer.seal_many(plaintexts)

    def seal(self, plaintext: bytes) -> bytes:
        return self.seal_many((plaintext,))[0]

    def open_many(self, run: Sequence[bytes]) -> tuple[list[bytes], list[CiphertextRefused]]:
        """Returns the plaintexts of the valid messages, and the errors of the others. Raises ChannelClosed."""
        if self._opener is None:
            raise self._closed()
        return self._opener.open_many(run)

    def open(self, data: bytes) -> bytes:
        if self._opener is None:
            raise self._closed()
        return self._opener.open(data)

    def _closed(self) -> ChannelClosed:
        return ChannelClosed("closed", f"the channel is {self.state.value}, not open")

    def take_control(self, plaintext: bytes) -> None:
        """Handles a decrypted message that is not for a worker: a Close ends the channel, and a Refresh renews `peer`.
        Raises PlaintextRefused or IdentityRefused if the message is not valid; the channel stays open."""
        assert not plaintext.startswith(PAYLOAD_HEAD)
        assert self.peer is not None
        renewed = read_control(plaintext)
        # A Close has no identity. A Refresh must be of the same identity, and its history must go on from the known
        # history: otherwise a key that was replaced would count again.
        if renewed is None:
            self._end(SecureChannelEvent.CLOSE_RECEIVED)
        elif renewed.identifier != self.peer.identifier:
            raise IdentityRefused("wrong_subject", f"{self.peer} has sent the history of {renewed}")
        elif renewed.changes[: len(self.peer.changes)] != self.peer.changes:
            raise IdentityRefused("changes", f"{self.peer} has sent a history that does not go on from the known one")
        else:
            # A new key may end earlier than the attestation, and cannot make the attestation last longer.
            self.peer, self.expires_s = renewed, min(self.expires_s, renewed.valid_until)

    @property
    def highest_received(self) -> int:
        return -1 if self._opener is None else self._opener.highest

    # The end.

    def close(self) -> bytes:
        """Ends the channel. Returns the encrypted Close to send, which is empty if the channel is not open."""
        data = b"" if self._sealer is None else self._sealer.seal(CLOSE)
        self._end(SecureChannelEvent.ENDED)
        return data

    def end(self) -> None:
        self._end(SecureChannelEvent.ENDED)

    def _end(self, event: SecureChannelEvent) -> None:
        self._change(event)
        self._handshake = self._sealer = self._opener = None
        self.peer = None

    def _change(self, event: SecureChannelEvent) -> None:
        state = TRANSITIONS[self.state].get(event)
        assert state is not None, f"{event} in {self.state}"
        self.state = state
