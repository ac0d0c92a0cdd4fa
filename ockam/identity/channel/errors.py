"""The errors of this package. Each has a short, fixed word for counters and audit lines, and a text for people."""

from __future__ import annotations


class SecureChannelError(Exception):
    """The base class of all errors of this package.

    reason: a short, fixed word for counters and for the audit log, for example `low_order_point` or `expired`."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class IdentityRefused(SecureChannelError):
    """Error: an identity, or the proof that its owner is on the other side, is not valid.

    Reasons: `undecodable`; `old_format` (an identity from before November 2023); `version` (the version or the type of
    signed data is unknown); `changes` (the changes of the signing key do not follow from each other); `signature`;
    `wrong_subject` (signed data is of another identity, or by a key that was replaced); `wrong_key` (the proof belongs
    to another key, for example because somebody else's proof was sent); `not_yet_valid`; `expired`; `outlives_key` (the
    attestation is not within the time of the key that signed it)."""


class HandshakeFailed(SecureChannelError):
    """Error: a message of the Noise handshake is not valid. The handshake continues as if the message had not come.

    Reasons: `short`; `long`; `low_order_point`; `unauthentic`."""


class PeerRefused(SecureChannelError):
    """Error: this side does not accept the identity of the other side, or the proof of it. The channel has ended.

    close: the encrypted message that reports the refusal to the other side; empty if it cannot be sent.
    identity: the identifier that the other side has proved; empty if it has proved none.
    Reasons: `not_trusted`, or one of IdentityRefused if the proof is not valid."""

    def __init__(self, reason: str, text: str, close: bytes = b"", identity: str = "") -> None:
        super().__init__(reason, text)
        self.close = close
        self.identity = identity


class CiphertextRefused(SecureChannelError):
    """Error: an encrypted message was dropped. The channel stays as it was.

    Reasons: `short`; `outside_window` (older or newer than the receiver accepts); `replayed`; `unauthentic`."""


class PlaintextRefused(SecureChannelError):
    """Error: a decrypted message is not one of Payload, Refresh and Close. It was dropped. Reason: `undecodable`."""


class ChannelClosed(SecureChannelError):
    """Error: the channel has ended, so no message can be sent or opened. Reason: `closed`."""


class NoncesUsedUp(SecureChannelError):
    """Error: the channel has used its last nonce and must be replaced by a new one. Reason: `nonces`."""


class InvalidIdentifier(SecureChannelError, ValueError):
    """Error: a text is not an identifier, which is `I` and 64 lower-case hexadecimal digits. Reason: `identifier`."""


class IdentityFileError(SecureChannelError):
    """Error: the file of an identity or of the trusted identifiers cannot be read or written. The text says what to do.

    Reasons: `missing`; `exists`; `unreadable`; `permissions`; `undecodable`; `unwritable`."""
