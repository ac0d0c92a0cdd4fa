"""The secure channel that Ockam nodes speak: mutual proof of identities, then encryption from end to end.

    from secure_channel import create_identity, parse_identifier

- An `OwnIdentity` has secrets, which are in a file (`create_identity`, `load_identity`). Others know its identifier, a
  text that begins with `I`.
- A `ChannelMachine` is one end of a channel: bytes in, bytes out.

The handshake is Noise XX with X25519, AES-256-GCM and SHA-256, as in Ockam since June 2024. Each public name is
imported on its first use, because loading the cryptography takes time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secure_channel.channel_machine import ChannelMachine, Trust
    from secure_channel.errors import (
        ChannelClosed,
        CiphertextRefused,
        HandshakeFailed,
        IdentityFileError,
        IdentityRefused,
        InvalidIdentifier,
        NoncesUsedUp,
        PeerRefused,
        PlaintextRefused,
        SecureChannelError,
    )
    from secure_channel.identity_file import create_identity, ensure_identity, load_identity
    from secure_channel.identity_history import PeerIdentity, format_identifier, parse_identifier, verify_history
    from secure_channel.own_identity import OwnIdentity, make_identity
    from secure_channel.proof import verify_proof

__all__ = [
    "ChannelClosed",
    "ChannelMachine",
    "CiphertextRefused",
    "HandshakeFailed",
    "IdentityFileError",
    "IdentityRefused",
    "InvalidIdentifier",
    "NoncesUsedUp",
    "OwnIdentity",
    "PeerIdentity",
    "PeerRefused",
    "PlaintextRefused",
    "SecureChannelError",
    "Trust",
    "create_identity",
    "ensure_identity",
    "format_identifier",
    "load_identity",
    "make_identity",
    "parse_identifier",
    "verify_history",
    "verify_proof",
]

_MODULES = {
    "ChannelClosed": "errors",
    "ChannelMachine": "channel_machine",
    "CiphertextRefused": "errors",
    "HandshakeFailed": "errors",
    "IdentityFileError": "errors",
    "IdentityRefused": "errors",
    "InvalidIdentifier": "errors",
    "NoncesUsedUp": "errors",
    "OwnIdentity": "own_identity",
    "PeerIdentity": "identity_history",
    "PeerRefused": "errors",
    "PlaintextRefused": "errors",
    "SecureChannelError": "errors",
    "Trust": "channel_machine",
    "create_identity": "identity_file",
    "ensure_identity": "identity_file",
    "format_identifier": "identity_history",
    "load_identity": "identity_file",
    "make_identity": "own_identity",
    "parse_identifier": "identity_history",
    "verify_history": "identity_history",
    "verify_proof": "proof",
}
"""For each public name, the module of this package that defines the name."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
