"""What the tests of the secure channel share: vectors, fixed identities, and two ends that shake hands."""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ockam.identity.channel.channel_machine import ChannelMachine, Trust
from ockam.identity.channel.identity_history import PeerIdentity
from ockam.identity.channel.proof import OwnIdentity, make_identity

VECTORS = Path(__file__).parents[3] / "vectors" / "secure_channel" / "vectors.json"
NOW_S = 1_795_317_700


@lru_cache
def kept() -> dict[str, Any]:
    """The vectors that are kept in this repository."""
    found: dict[str, Any] = json.loads(VECTORS.read_text())
    return found


@lru_cache
def identity(name: str, now_s: int = NOW_S) -> OwnIdentity:
    """An identity whose secrets are made from a name: the same one in every run."""
    return make_identity(sha256(f"{name} signing".encode()).digest(), sha256(f"{name} static".encode()).digest(), now_s)


def ephemeral(seed: object) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(sha256(f"ephemeral {seed}".encode()).digest())


def trust_all(peer: PeerIdentity) -> str | None:
    return None


def trust_only(*trusted: OwnIdentity) -> Trust:
    identifiers = {each.identifier for each in trusted}
    return lambda peer: None if peer.identifier in identifiers else f"{peer} is not trusted"


def machines(
    seed: object = 0, *, initiator_trusts: Trust = trust_all, responder_trusts: Trust = trust_all
) -> tuple[ChannelMachine, ChannelMachine, bytes, bytes]:
    """An initiator that has sent message 1 and a responder that has answered it, with both messages."""
    initiator = ChannelMachine(identity("initiator"), initiator_trusts)
    responder = ChannelMachine(identity("responder"), responder_trusts)
    first = initiator.begin(ephemeral(f"{seed} initiator"))
    return initiator, responder, first, responder.receive_1(first, ephemeral(f"{seed} responder"))


def channel(seed: object = 0) -> tuple[ChannelMachine, ChannelMachine]:
    """Both ends of an open channel, the initiator first."""
    initiator, responder, _, second = machines(seed)
    responder.receive_3(initiator.receive_2(second, NOW_S), NOW_S)
    return initiator, responder
