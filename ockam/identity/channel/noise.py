"""NoiseHandshake: the three messages of Noise XX, by which two sides agree on keys and prove their static keys.

It does not know identities, whose proofs are the payloads of messages 2 and 3. It reads no sockets, no clock and no
source of randomness; the ephemeral key is a parameter.

    message 1   e.pub | payload                          (the payload is not encrypted)
    message 2   e.pub | encrypted s.pub, 48 bytes | encrypted payload
    message 3   encrypted s.pub, 48 bytes | encrypted payload

    e, s        the sender's ephemeral key and static key; .pub: its public half, 32 bytes
    encrypted   AES-256-GCM, nonce = 4 zero bytes | u64 big-endian counter, additional data = the hash of all before

The primitives are X25519, AES-256-GCM, SHA-256 and HKDF (Noise, revision 34, §5 and §7.5). The handshake ends with two
keys. In the text of Noise, the initiator encrypts with the first one; in every Ockam peer, with the second one
(facts/secure_channel.md §0)."""

from __future__ import annotations

from copy import copy
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ockam.identity.channel.errors import HandshakeFailed

PROTOCOL_NAME = b"OCKAM_XX_25519_AES256_GCM_SHA256"
"""The name of the protocol, the first hash of the handshake. It has exactly 32 bytes, so it is not hashed."""
KEY_BYTES = 32
TAG_BYTES = 16
MESSAGE_BYTES_MAX = 65_535
"""The largest handshake message that is read, as in the Rust implementation."""
IGNORED_PAYLOAD_BYTES_MAX = 1024
"""The largest payload of message 1 that is accepted and ignored. Real peers send none."""
NONCE_ZEROS = bytes(4)


class ChannelKeys(NamedTuple):
    send: bytes
    receive: bytes


class _Symmetric:
    """The symmetric state of a handshake: the hash `h`, the chaining key `ck`, and the present key with its counter."""

    __slots__ = ("_key", "_nonce", "ck", "h")

    def __init__(self, protocol_name: bytes) -> None:
        self.ck = protocol_name
        self.h = protocol_name
        self._key = b""
        self._nonce = 0

    def mix_hash(self, data: bytes) -> None:
        self.h = sha256(self.h + data).digest()

    def mix_key(self, private: X25519PrivateKey, public: bytes) -> None:
        """Mixes in the result of a Diffie-Hellman exchange. Raises HandshakeFailed for a point of low order."""
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise HandshakeFailed("low_order_point", "the peer's key is a point of low order") from error
        self.ck, self._key = _hkdf(self.ck, shared)
        self._nonce = 0

    def encrypt(self, plaintext: bytes) -> bytes:
        data = AESGCM(self._key).encrypt(self._next_nonce(), plaintext, self.h)
        self.mix_hash(data)
        return data

    def decrypt(self, data: bytes) -> bytes:
        try:
            plaintext = AESGCM(self._key).decrypt(self._next_nonce(), data, self.h)
        except InvalidTag as error:
            raise HandshakeFailed("unauthentic", "a handshake message was changed, or is for another one") from error
        self.mix_hash(data)
        return plaintext

    def _next_nonce(self) -> bytes:
        self._nonce += 1
        return NONCE_ZEROS + (self._nonce - 1).to_bytes(8, "big")


class NoiseHandshake:
    """One handshake, on the side of the initiator (messages 1 and 3) or of the responder (message 2).

    The methods must be called in the order of the messages; `read_1` to `read_3` return the payload. A method that
    raises HandshakeFailed changes nothing, so a correct message that comes later is still accepted.

    remote_static: the static key of the other side, 32 bytes; known after `read_2` or `read_3`.
    hash: a value that both sides share after the last message and that no other handshake has."""

    def __init__(
        self, static: X25519PrivateKey, ephemeral: X25519PrivateKey, protocol_name: bytes = PROTOCOL_NAME
    ) -> None:
        """static: the long-lived key whose ownership is proved. ephemeral: a key that no other handshake uses.
        protocol_name: 32 bytes; another name than the default serves only to check published test vectors."""
        assert len(protocol_name) == KEY_BYTES
        self._static = static
        self._ephemeral = ephemeral
        self._symmetric = _Symmetric(protocol_name)
        # The prologue is empty, and is mixed in all the same.
        self._symmetric.mix_hash(b"")
        self._remote_ephemeral = b""
        self.remote_static = b""

    @property
    def hash(self) -> bytes:
        return self._symmetric.h

    def write_1(self, payload: bytes = b"") -> bytes:
        public = public_bytes(self._ephemeral)
        self._symmetric.mix_hash(public)
        self._symmetric.mix_hash(payload)
        return public + payload

    def read_1(self, data: bytes) -> bytes:
        _check_size(data, KEY_BYTES, KEY_BYTES + IGNORED_PAYLOAD_BYTES_MAX)
        self._remote_ephemeral, payload = data[:KEY_BYTES], data[KEY_BYTES:]
        self._symmetric.mix_hash(self._remote_ephemeral)
        self._symmetric.mix_hash(payload)
        return payload

    def write_2(self, payload: bytes) -> bytes:
        # All steps are done on a copy, which replaces the state at the end: an error half-way changes nothing.
        symmetric = copy(self._symmetric)
        public = public_bytes(self._ephemeral)
        # First the ephemeral keys are exchanged (ee), so that the static key goes over the wire encrypted.
        symmetric.mix_hash(public)
        symmetric.mix_key(self._ephemeral, self._remote_ephemeral)
        static = symmetric.encrypt(public_bytes(self._static))
        # Then the static key is mixed in (es), which proves that this side owns it.
        symmetric.mix_key(self._static, self._remote_ephemeral)
        message = public + static + symmetric.encrypt(payload)
        self._symmetric = symmetric
        return message

    def read_2(self, data: bytes) -> bytes:
        _check_size(data, 2 * KEY_BYTES + 2 * TAG_BYTES, MESSAGE_BYTES_MAX)
        symmetric = copy(self._symmetric)
        ephemeral, static_end = data[:KEY_BYTES], 2 * KEY_BYTES + TAG_BYTES
        # The same exchanges as in `write_2`, from the other side: ee, and es with the static key in the message.
        symmetric.mix_hash(ephemeral)
        symmetric.mix_key(self._ephemeral, ephemeral)
        static = symmetric.decrypt(data[KEY_BYTES:static_end])
        symmetric.mix_key(self._ephemeral, static)
        payload = symmetric.decrypt(data[static_end:])
        self._symmetric, self._remote_ephemeral, self.remote_static = symmetric, ephemeral, static
        return payload

    def write_3(self, payload: bytes) -> bytes:
        symmetric = copy(self._symmetric)
        static = symmetric.encrypt(public_bytes(self._static))
        # The third exchange (se) proves that this side owns its static key, too.
        symmetric.mix_key(self._static, self._remote_ephemeral)
        message = static + symmetric.encrypt(payload)
        self._symmetric = symmetric
        return message

    def read_3(self, data: bytes) -> bytes:
        _check_size(data, KEY_BYTES + 2 * TAG_BYTES, MESSAGE_BYTES_MAX)
        symmetric = copy(self._symmetric)
        static_end = KEY_BYTES + TAG_BYTES
        static = symmetric.decrypt(data[:static_end])
        # The exchange se, from the other side. The payload decrypts only if the initiator owns its static key.
        symmetric.mix_key(self._ephemeral, static)
        payload = symmetric.decrypt(data[static_end:])
        self._symmetric, self.remote_static = symmetric, static
        return payload

    def keys(self, *, is_initiator: bool) -> ChannelKeys:
        """Returns the keys of the channel. Call it after the last message."""
        first, second = _hkdf(self._symmetric.ck, b"")
        return ChannelKeys(second, first) if is_initiator else ChannelKeys(first, second)


def public_bytes(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def _hkdf(salt: bytes, material: bytes) -> tuple[bytes, bytes]:
    both = HKDF(SHA256(), 2 * KEY_BYTES, salt, b"").derive(material)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def _check_size(data: bytes, least: int, most: int) -> None:
    if len(data) < least:
        raise HandshakeFailed("short", f"a handshake message of {len(data)} bytes; it has at least {least}")
    if len(data) > most:
        raise HandshakeFailed("long", f"a handshake message of {len(data)} bytes; it has at most {most}")
