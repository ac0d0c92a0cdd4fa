"""Identities that have replaced their signing key, which this project reads and does not make."""

from __future__ import annotations

from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.identity.channel.cbor import write_array, write_boolean, write_bytes, write_null, write_unsigned
from ockam.identity.channel.identity_history import CHANGE, CHANGES_MAX, sign_data, verify_history, write_variant
from ockam.identity.channel.noise import public_bytes
from ockam.identity.channel.proof import OwnIdentity, Secrets, make_attestation
from tests.ockam.identity.channel.samples import NOW_S


def changes(*keys: Ed25519PrivateKey, valid_from: tuple[int, ...] | None = None, breaks: str = "") -> bytes:
    """A history with a change for each key. breaks: what is wrong with the last change."""
    history, before = [], write_null()
    for number, key in enumerate(keys):
        is_last = number == len(keys) - 1
        begin = NOW_S if valid_from is None else valid_from[number]
        named = write_bytes(bytes(32)) if is_last and breaks == "names another change" else before
        content = write_array(
            named,
            write_variant(key.public_key().public_bytes_raw()),
            write_boolean(False),
            write_unsigned(begin),
            write_unsigned(NOW_S + 1000),
        )
        change = sign_data(key, CHANGE, content)
        # The data are the first item after the array's head and have fewer than 256 bytes.
        data = change[3 : 3 + change[2]]
        digest = sha256(data).digest()
        if number and not (is_last and breaks == "not signed by the key before"):
            other = key if is_last and breaks == "signed by its own key twice" else keys[number - 1]
            change = b"\x83" + change[1:] + write_variant(other.sign(digest))
        history.append(change)
        before = write_bytes(digest)
    return write_array(*history)


KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, CHANGES_MAX + 2)]


def rotated(*keys: Ed25519PrivateKey, expires_s: int = NOW_S + 1000) -> OwnIdentity:
    """An identity whose present key is the last one. The channel key belongs to the present key."""
    history, static = changes(*keys), sha256(keys[-1].private_bytes_raw()).digest()
    channel_key = public_bytes(X25519PrivateKey.from_private_bytes(static))
    attestation = make_attestation(keys[-1], verify_history(history), channel_key, NOW_S, expires_s)
    return OwnIdentity(Secrets(keys[-1].private_bytes_raw(), static, history, attestation), NOW_S)
