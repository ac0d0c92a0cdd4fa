"""Starts the secure channels of a node, with its settings, its identity and its list of trusted identities."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from stream_node.node.config import APPLICATION, Config, ConfigError, mistakes_in

if TYPE_CHECKING:
    import trio

    from ockam.actors.node import Node
    from ockam.identity.channel.identity_file import IdentityHolder
    from ockam.identity.channel.workers.channels import CloseIdentities, SecureChannels
    from stream_node.node.identity.access import NodeAccess

IDENTITY_FILE = "identity.json"
TRUST_FILE = "trusted_identities"
KNOWN_FILE = "known_identities"
"""The name of the file with the identities that have replaced a key, in the data directory."""


def node_identity_file(data_dir: str) -> Path:
    return Path(data_dir) / IDENTITY_FILE


def user_identity_file() -> Path:
    return Path(platformdirs.user_config_dir(APPLICATION)) / IDENTITY_FILE


def trust_file(data_dir: str) -> Path:
    return Path(data_dir) / TRUST_FILE


def check_settings(config: Config) -> None:
    if not config.secure_channel_trusted:
        return
    from ockam.identity.channel.errors import InvalidIdentifier
    from ockam.identity.channel.identity_history import parse_identifier

    trusted = config.secure_channel_trusted
    mistakes = mistakes_in("secure_channel_trusted", trusted, parse_identifier, InvalidIdentifier)
    if mistakes:
        raise ConfigError(*mistakes)


def start_channels(
    node: Node,
    nursery: trio.Nursery,
    config: Config,
    access: NodeAccess | None,  # the rules, whose audit log gets refused channels
    close_identities: CloseIdentities,  # see `SecureChannels`
) -> SecureChannels | None:
    """Starts the listener for secure channels. Returns None if the settings turn it off. Raises IdentityFileError.
    If the node trusts any identity, its own identity is made now, so that a failure is noticed at the start."""
    if not config.secure_channel:
        return None
    import time

    from ockam.identity.channel.admission_machine import ChannelLimits
    from ockam.identity.channel.trust_list import KnownHistories, TrustList
    from ockam.identity.channel.workers.channels import SecureChannels

    anyone = config.secure_channel_trust_anyone
    trust = TrustList(trust_file(config.data_dir), config.secure_channel_trusted, anyone=anyone)

    @cache
    def holder() -> IdentityHolder:
        # Only a node that trusts somebody loads the code that signs and encrypts.
        from ockam.identity.channel.identity_file import IdentityHolder

        return IdentityHolder(node_identity_file(config.data_dir))

    if not trust.is_closed:
        holder().get(int(time.time()))
    limits = ChannelLimits(
        handshakes_max=config.secure_channel_handshakes_max,
        peer_handshakes_max=config.secure_channel_peer_handshakes_max,
        handshakes_per_s=float(config.secure_channel_handshakes_per_second),
        handshake_s_max=config.secure_channel_handshake_s_max,
        channels_max=config.secure_channel_channels_max,
        peer_channels_max=config.secure_channel_peer_channels_max,
        idle_s_max=config.secure_channel_idle_s_max,
    )
    # With `anyone`, peers could fill the file.
    known = KnownHistories(None if anyone else Path(config.data_dir) / KNOWN_FILE)
    audit = access.audit if access is not None else None
    channels = SecureChannels(
        node,
        nursery,
        lambda now_s: holder().get(now_s),
        trust,
        limits=limits,
        known=known,
        audit=audit,
        close_identities=close_identities,
    )
    channels.start(config.secure_channel_addresses)
    if access is not None:
        access.closers.append(channels.end_identities)
    return channels
