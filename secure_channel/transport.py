"""Sealer and Opener: encrypt and decrypt the messages of an established channel. They know nothing of their content.

    +-------------------+-----------------------------+----------+
    | nonce: u64        | ciphertext: AES-256-GCM,    | tag      |
    | big-endian, 8 B   | as long as the plaintext    | 16 bytes |
    +-------------------+-----------------------------+----------+

Each direction has its own key and counts its nonces from 0. Before the nonces 32, 64, 96, … the key is replaced by
AES-GCM(key, nonce 2^64 - 1, 32 zero bytes) without its tag (facts/secure_channel.md §5). So a key encrypts 32 messages.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_channel.errors import CiphertextRefused, NoncesUsedUp
from secure_channel.noise import KEY_BYTES, NONCE_ZEROS, TAG_BYTES

REKEY_INTERVAL = 32
"""The number of messages that one key encrypts."""
WINDOW = 32
"""How far the nonce of a message is allowed to be from the highest one accepted so far. If 32 messages in a row are
lost after an accepted one, all later ones are refused, and a new channel must be made."""
NONCE_BYTES = 8
OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES
NONCE_END = (1 << 64) - 1
"""The nonces of messages are lower than this one, which is used only to compute the next key."""
_REKEY_NONCE = NONCE_ZEROS + NONCE_END.to_bytes(NONCE_BYTES, "big")
_WINDOW_BITS = (1 << (WINDOW + 1)) - 1


def next_key(key: bytes) -> bytes:
    """Returns the key that follows `key` after REKEY_INTERVAL messages."""
    return AESGCM(key).encrypt(_REKEY_NONCE, bytes(KEY_BYTES), b"")[:KEY_BYTES]


class Sealer:
    """Encrypts the messages of one direction.

    nonce: the nonce of the next message.

    Invariant: `nonce` only grows, and it grows before a message is encrypted. So no nonce is used twice, even if an
    exception interrupts `seal`.
    """

    __slots__ = ("_encrypt", "_key", "nonce")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._encrypt = AESGCM(key).encrypt
        self.nonce = 0

    def seal(self, plaintext: bytes) -> bytes:
        """Returns the encrypted message. Raises NoncesUsedUp after 2^64 - 32 messages."""
        nonce = self.nonce
        if not nonce % REKEY_INTERVAL and nonce:
            self._replace_key(nonce)
        self.nonce = nonce + 1
        raw = nonce.to_bytes(8, "big")
        return raw + self._encrypt(NONCE_ZEROS + raw, plaintext, None)

    def _replace_key(self, nonce: int) -> None:
        # The last interval is never begun, so the nonce of `next_key` encrypts no message.
        if nonce >= NONCE_END - REKEY_INTERVAL:
            raise NoncesUsedUp("nonces", "the channel has used all its nonces; make a new one")
        self._key = next_key(self._key)
        self._encrypt = AESGCM(self._key).encrypt


class Opener:
    """Decrypts the messages of one direction, each at most once, also if they come in another order.

    highest: the highest nonce of an accepted message; -1 before the first.

    Invariant: the state changes only after the tag of a message was verified. Bit n of `_seen` says that the nonce
    `highest - n` was accepted. `_key` is the key for 32 nonces, among them `highest`, and `_previous` decrypts with the
    key for the 32 nonces before these; None if there are none.
    """

    __slots__ = ("_decrypt", "_interval", "_key", "_previous", "_seen", "highest")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._decrypt = AESGCM(key).decrypt
        self._previous: AESGCM | None = None
        self._interval = 0
        self._seen = 0
        self.highest = -1

    def open(self, data: bytes) -> bytes:
        """Returns the plaintext. Raises CiphertextRefused; then nothing has changed."""
        if len(data) < OVERHEAD_BYTES:
            raise CiphertextRefused("short", f"an encrypted message of {len(data)} bytes")
        nonce = int.from_bytes(data[:8], "big")
        ahead = nonce - self.highest
        # The usual case: the next message, under the present key.
        if ahead == 1 and nonce // REKEY_INTERVAL == self._interval:
            try:
                plaintext = self._decrypt(NONCE_ZEROS + data[:8], data[8:], None)
            except InvalidTag as error:
                raise _unauthentic() from error
            self.highest = nonce
            self._seen = (self._seen << 1 | 1) & _WINDOW_BITS
            return plaintext
        return self._open_other(data, nonce, ahead)

    def _open_other(self, data: bytes, nonce: int, ahead: int) -> bytes:
        # Before the first message, the window is around nonce 0.
        beyond = nonce - max(self.highest, 0)
        if beyond > WINDOW or beyond < -WINDOW:
            raise CiphertextRefused("outside_window", f"nonce {nonce} is far from the highest, {self.highest}")
        if ahead <= 0 and self._seen >> -ahead & 1:
            raise CiphertextRefused("replayed", f"nonce {nonce} was accepted before")
        key, cipher = self._key_of(nonce // REKEY_INTERVAL)
        try:
            plaintext = cipher.decrypt(NONCE_ZEROS + data[:8], data[8:], None)
        except InvalidTag as error:
            raise _unauthentic() from error
        if ahead > 0:
            if nonce // REKEY_INTERVAL != self._interval:
                self._previous, self._key = AESGCM(self._key), key
                self._decrypt = cipher.decrypt
                self._interval = nonce // REKEY_INTERVAL
            self._seen = (self._seen << ahead | 1) & _WINDOW_BITS
            self.highest = nonce
        else:
            self._seen |= 1 << -ahead
        return plaintext

    def _key_of(self, interval: int) -> tuple[bytes, AESGCM]:
        """Returns the key of an interval (32 nonces that share a key), and a cipher with this key.

        For the interval before the present one, only the cipher is known, so the key is empty. Raises CiphertextRefused
        for an interval whose key is not known.
        """
        if interval == self._interval:
            return self._key, AESGCM(self._key)
        if interval == self._interval + 1:
            key = next_key(self._key)
            return key, AESGCM(key)
        if interval == self._interval - 1 and self._previous is not None:
            return b"", self._previous
        raise CiphertextRefused(
            "outside_window", f"no key for interval {interval}; the present one is {self._interval}"
        )

    def check(self) -> None:
        """Raises AssertionError if the invariant does not hold."""
        assert self._interval == max(self.highest, 0) // REKEY_INTERVAL
        assert (self._previous is not None) == (self._interval > 0)
        assert self._seen & 1 == (self.highest >= 0)
        assert not self._seen >> (self.highest + 1) if self.highest < WINDOW else self._seen <= _WINDOW_BITS


def _unauthentic() -> CiphertextRefused:
    return CiphertextRefused("unauthentic", "the message was changed, or is not of this channel")
