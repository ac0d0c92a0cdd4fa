"""The options --peer, --identity and --channel-listener, with which a command opens a secure channel to its node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, NamedTuple

from stream_node.cli.options import named
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from stream_client import SecureChannel
    from stream_node.cli.contexts import Target

PeerOption = Annotated[
    str | None,
    named(
        "--peer",
        "IDENTIFIER",
        "Open a secure channel to the node, which must have this identity. Several are separated by commas.",
    ),
]
IdentityOption = Annotated[
    str | None,
    named(
        "--identity",
        "FILE",
        "The file of your own identity for --peer. Without it: that of your user (see `identity create`).",
    ),
]
ListenerOption = Annotated[
    str | None,
    named(
        "--channel-listener",
        "NAME",
        "The name of the listener for secure channels on the node. [default: secure_channel; Ockam's Rust nodes: api]",
    ),
]


class ChannelOptions(NamedTuple):
    """The secure channel to a node. peer: the identifier of the node. identity: the file of the own identity.
    channel_listener: the name of the listener on the node."""

    peer: PeerOption = None
    identity: IdentityOption = None
    channel_listener: ListenerOption = None

    def make(self, target: Target) -> SecureChannel | None:
        """Returns the secure channel to a node, or None if neither an option nor the target names a peer.
        Raises UsageError if another option is given without a peer: a channel to an unknown peer is no protection."""
        chosen = self.peer or target.peer
        if chosen is None:
            if self.identity is not None or self.channel_listener is not None:
                lone = "--identity" if self.identity is not None else "--channel-listener"
                raise UsageError(f"{lone} needs --peer, the identity of the node that you want to reach")
            return None
        from stream_client import SecureChannel
        from stream_client.secure import LISTENER
        from stream_node.node.identity.channel_services import user_identity_file

        file = self.identity or target.identity or user_identity_file()
        peers = tuple(text.strip() for text in chosen.split(","))
        return SecureChannel(
            identity=file, peer=peers, name=self.channel_listener or target.channel_listener or LISTENER
        )


NO_CHANNEL = ChannelOptions()


def check_peer(peer: str | None) -> str | None:
    if peer is not None:
        from ockam.identity.channel.identity_history import parse_identifier

        for text in peer.split(","):
            parse_identifier(text.strip())
    return peer


def absolute(file: str | None) -> str | None:
    """Returns the absolute path of a file; None for None. A saved path must be valid from every folder."""
    return None if file is None else os.path.abspath(file)
