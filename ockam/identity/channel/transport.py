"""Sealer and Opener: encrypt and decrypt the messages of an established channel. They know nothing of their content.

    +-------------------+-----------------------------+----------+
    | nonce: u64        | ciphertext: AES-256-GCM,    | tag      |
    | big-endian, 8 B   | as long as the plaintext    | 16 bytes |
    +-------------------+-----------------------------+----------+

Each direction has its own key and counts its nonces from 0. Before the nonces 32, 64, 96, … the key is replaced by
AES-GCM(key, nonce 2^64 - 1, 32 zero bytes) without its tag (facts/secure_channel.md §5)."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ockam.identity.channel.errors import CiphertextRefused, NoncesUsedUp
from ockam.identity.channel.noise import KEY_BYTES, NONCE_ZEROS, TAG_BYTES

REKEY_INTERVAL = 32
WINDOW = 32
"""How far the nonce of a message may be from the highest accepted one. After 32 lost messages in a row, all later ones
are refused, and a new channel must be made."""
NONCE_BYTES = 8
OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES
NONCE_END = (1 << 64) - 1
"""The nonces of messages are lower than this one, which is used only to compute the next key."""
_REKEY_NONCE = NONCE_ZEROS + NONCE_END.to_bytes(NONCE_BYTES, "big")
_NONCES_MAX = NONCE_END + 1 - REKEY_INTERVAL
"""The number of messages of one channel. The last interval is never begun, so `_REKEY_NONCE` encrypts no message."""
_LAST_BYTES = tuple(bytes((value,)) for value in range(256))
"""The last byte of a nonce. The nonces of one key differ in this byte only, because 256 is a multiple of 32."""
_WINDOW_BITS = (1 << (WINDOW + 1)) - 1


def next_key(cipher: AESGCM) -> bytes:
    return cipher.encrypt(_REKEY_NONCE, bytes(KEY_BYTES), None)[:KEY_BYTES]


class Sealer:
    """Encrypts the messages of one direction. nonce: the nonce of the next message.

    Invariant: `nonce` only grows, and it grows before messages are encrypted. So no nonce is used twice, even if an
    exception interrupts `seal` or `seal_many`."""

    __slots__ = ("_cipher", "nonce")

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self.nonce = 0

    def seal(self, plaintext: bytes) -> bytes:
        return self.seal_many((plaintext,))[0]

    def seal_many(self, plaintexts: Sequence[bytes]) -> list[bytes]:
        """Returns the encrypted messages, in order. Raises NoncesUsedUp before the first if there are too many."""
        at, count = 0, len(plaintexts)
        if self.nonce + count > _NONCES_MAX:
            raise NoncesUsedUp("nonces", "the channel has used all its nonces; make a new one")
        sealed: list[bytes] = []
        while at < count:
            nonce = self.nonce
            place = nonce % REKEY_INTERVAL
            # The key is replaced every 32 messages, so a later key tells nothing about earlier messages.
            if not place and nonce:
                self._cipher = AESGCM(next_key(self._cipher))
            # All messages that the present key can encrypt use up their nonces here, before the first is encrypted.
            end = min(count, at + REKEY_INTERVAL - place)
            self.nonce = nonce + end - at
            # The nonces differ in their last byte only, which is looked up: to make each from a number takes longer.
            encrypt, first_bytes, last = self._cipher.encrypt, (nonce >> 8).to_bytes(7, "big"), nonce & 255
            for last_byte, plaintext in zip(_LAST_BYTES[last : last + end - at], plaintexts[at:end], strict=True):
                raw = first_bytes + last_byte
                sealed.append(raw + encrypt(NONCE_ZEROS + raw, plaintext, None))
            at = end
        return sealed


class Opener:
    """Decrypts the messages of one direction, each at most once, also if they come in another order.

    highest: the highest nonce of an accepted message; -1 before the first.

    Invariant: the state changes only after the tag of a message was verified. Bit n of `_seen` says that the nonce
    `highest - n` was accepted. `_cipher` decrypts the 32 nonces that share a key, among them `highest`, and `_previous`
    the 32 nonces before these; None if there are none."""

    __slots__ = ("_cipher", "_interval", "_previous", "_seen", "highest")

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
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
        # Before the first message, the window is around nonce 0.
        beyond = nonce - max(self.highest, 0)
        if beyond > WINDOW or beyond < -WINDOW:
            raise CiphertextRefused("outside_window", f"nonce {nonce} is far from the highest, {self.highest}")
        # The nonce is checked before the tag: a replay costs no cryptography.
        if ahead <= 0 and self._seen >> -ahead & 1:
            raise CiphertextRefused("replayed", f"nonce {nonce} was accepted before")
        # The message may have the key before or after the present one. The cipher of the next key is made here, and
        # retained only if the tag is right.
        interval = nonce // REKEY_INTERVAL
        cipher = self._cipher_of(interval)
        try:
            plaintext = cipher.decrypt(NONCE_ZEROS + data[:8], data[8:], None)
        except InvalidTag as error:
            raise _unauthentic() from error
        # The tag is right. A new highest nonce moves the window, and perhaps to the next key.
        if ahead > 0:
            if interval != self._interval:
                self._previous, self._cipher, self._interval = self._cipher, cipher, interval
            self._seen = (self._seen << ahead | 1) & _WINDOW_BITS
            self.highest = nonce
        else:
            self._seen |= 1 << -ahead
        return plaintext

    def open_many(self, run: Sequence[bytes]) -> tuple[list[bytes], list[CiphertextRefused]]:
        """Decrypts messages as `open` does, but faster. Returns the plaintexts, and the errors of the refused ones."""
        plaintexts: list[bytes] = []
        refused: list[CiphertextRefused] = []
        at, count = 0, len(run)
        while at < count:
            # Mostly the next messages come in order and under the present key.
            before, is_forged = len(plaintexts), False
            try:
                self._open_in_order(run, at, plaintexts)
            except InvalidTag:
                is_forged = True
            at += len(plaintexts) - before
            # The message after them was changed, or has another key or another place in the order.
            if is_forged:
                refused.append(_unauthentic())
            elif at < count:
                try:
                    plaintexts.append(self.open(run[at]))
                except CiphertextRefused as error:
                    refused.append(error)
            at += 1
        return plaintexts, refused

    def _open_in_order(self, run: Sequence[bytes], at: int, plaintexts: list[bytes]) -> None:
        """Appends the plaintexts of the messages from `run[at]` on, as long as each has the next nonce of the present
        key. Raises InvalidTag for a message that was changed; then the messages before it were accepted."""
        nonce, before = self.highest + 1, len(plaintexts)
        left = REKEY_INTERVAL * (self._interval + 1) - nonce
        decrypt, first_bytes, last = self._cipher.decrypt, (nonce >> 8).to_bytes(7, "big"), nonce & 255
        try:
            for last_byte, data in zip(_LAST_BYTES[last : last + left], run[at : at + left], strict=False):
                raw = first_bytes + last_byte
                if not data.startswith(raw) or len(data) < OVERHEAD_BYTES:
                    return
                plaintexts.append(decrypt(NONCE_ZEROS + raw, data[8:], None))
        finally:
            # Also after a changed message, all messages before it count as accepted.
            accepted = len(plaintexts) - before
            self.highest += accepted
            self._seen = (self._seen << accepted | (1 << accepted) - 1) & _WINDOW_BITS

    def _cipher_of(self, interval: int) -> AESGCM:
        """Returns the cipher of 32 nonces that share a key. Raises CiphertextRefused if the key is not known."""
        if interval == self._interval:
            return self._cipher
        if interval == self._interval + 1:
            return AESGCM(next_key(self._cipher))
        if interval == self._interval - 1 and self._previous is not None:
            return self._previous
        raise CiphertextRefused(
            "outside_window", f"no key for interval {interval}; the present one is {self._interval}"
        )

    def check(self) -> None:
        assert self._interval == max(self.highest, 0) // REKEY_INTERVAL
        assert (self._previous is not None) == (self._interval > 0)
        assert self._seen & 1 == (self.highest >= 0)
        assert not self._seen >> (self.highest + 1) if self.highest < WINDOW else self._seen <= _WINDOW_BITS


def _unauthentic() -> CiphertextRefused:
    return CiphertextRefused("unauthentic", "the message was changed, or is not of this channel")
