"""OwnIdentity: an identity whose secret keys this process has. The module reads no files. Times: seconds since 1970."""

from __future__ import annotations

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.identity.channel.cbor import CborError, CborReader
from ockam.identity.channel.errors import IdentityRefused
from ockam.identity.channel.identity_history import (
    ATTESTATION,
    ED25519,
    format_identifier,
    make_history,
    read_signature,
    read_versioned,
    refuse_undecodable,
    verify_history,
)
from ockam.identity.channel.noise import public_bytes
from ockam.identity.channel.proof import make_attestation, make_proof, verify_proof

DAY_S = 86_400
IDENTITY_S = 10 * 365 * DAY_S
"""How long a new identity is valid, as in the other implementations of Ockam."""
ATTESTATION_S = 5 * 365 * DAY_S
RENEW_BEFORE_S = 30 * DAY_S
BACKDATED_S = 300
"""A new identity or attestation begins this many seconds in the past, for peers whose clock is behind."""


class Secrets(msgspec.Struct, frozen=True):
    """The stored parts of an identity. They are secret, and are never logged.

    signing_secret: the Ed25519 key. static_secret: the X25519 key. history: the signed public key with its times.
    attestation: the signed statement that the X25519 key is the channel key of this identity (see `renewed`)."""

    signing_secret: bytes
    static_secret: bytes
    history: bytes
    attestation: bytes

    def __repr__(self) -> str:
        return "Secrets(…)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return []


class OwnIdentity:
    """An identity of this process. Its texts show no secrets. Raises IdentityRefused if its parts do not fit together.

    secrets: its stored parts. peer: the identity as other sides see it.
    static: the X25519 key of all handshakes. proof: the payload of handshake messages that proves this identity."""

    __slots__ = ("peer", "proof", "secrets", "static")

    def __init__(self, secrets: Secrets, now_s: int) -> None:
        self.secrets = secrets
        self.peer = verify_history(secrets.history)
        try:
            self.static = X25519PrivateKey.from_private_bytes(secrets.static_secret)
            signing_key = Ed25519PrivateKey.from_private_bytes(secrets.signing_secret)
        except ValueError as error:
            raise IdentityRefused("undecodable", "a secret of the identity does not have 32 bytes") from error
        if self.peer.key != (ED25519, signing_key.public_key().public_bytes_raw()):
            raise IdentityRefused("wrong_key", "the signing secret does not belong to the identity's history")
        self.proof = make_proof(secrets.history, secrets.attestation)
        verify_proof(self.proof, public_bytes(self.static), now_s)

    @property
    def identifier(self) -> bytes:
        return self.peer.identifier

    def __str__(self) -> str:
        return format_identifier(self.peer.identifier)

    def __repr__(self) -> str:
        return f"OwnIdentity({self})"


def make_identity(signing_secret: bytes, static_secret: bytes, now_s: int) -> OwnIdentity:
    signing_key = Ed25519PrivateKey.from_private_bytes(signing_secret)
    begin = now_s - BACKDATED_S
    history = make_history(signing_key, begin, begin + IDENTITY_S)
    return OwnIdentity(renewed(Secrets(signing_secret, static_secret, history, b""), now_s), now_s)


def renewed(secrets: Secrets, now_s: int) -> Secrets:
    """Returns the secrets with a new attestation of the same channel key. Raises IdentityRefused."""
    peer = verify_history(secrets.history)
    created_at = max(now_s - BACKDATED_S, peer.valid_from)
    expires_at = min(created_at + ATTESTATION_S, peer.valid_until)
    if expires_at <= now_s:
        raise IdentityRefused("expired", f"the identity {peer} has ended; make a new one and have it trusted")
    signing_key = Ed25519PrivateKey.from_private_bytes(secrets.signing_secret)
    static_public = public_bytes(X25519PrivateKey.from_private_bytes(secrets.static_secret))
    attestation = make_attestation(signing_key, peer, static_public, created_at, expires_at)
    return msgspec.structs.replace(secrets, attestation=attestation)


def must_renew(secrets: Secrets, now_s: int) -> bool:
    peer = verify_history(secrets.history)
    expires_at = _expiry(secrets.attestation)
    return expires_at < now_s + RENEW_BEFORE_S and expires_at < min(now_s + ATTESTATION_S, peer.valid_until)


def _expiry(attestation: bytes) -> int:
    try:
        reader = CborReader(attestation)
        reader.array(2)
        data = reader.byte_string()
        read_signature(reader)
        content = CborReader(read_versioned(data, ATTESTATION))
        content.array(5)
        content.byte_string()
        content.byte_string()
        content.array(2)
        content.unsigned()
        content.array(1)
        content.byte_string()
        content.unsigned()
        return content.unsigned()
    except CborError as error:
        refuse_undecodable(error)
