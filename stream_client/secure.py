"""SecureChannel: the settings with which a client opens a secure channel to the node that it uses."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ockam.actors.address import Route, local
from stream_client.core.client_connection import ClientConnection
from stream_client.errors import InvalidArgument

if TYPE_CHECKING:
    from ockam.identity.channel.proof import OwnIdentity

LISTENER = "secure_channel"
"""The name of the listener for secure channels at a stream node. Ockam's Rust nodes listen at "api"."""


class SecureChannel(msgspec.Struct, frozen=True, kw_only=True):
    """Encrypts everything between a client and the node that has the services, also through other nodes.

    identity: the client's own identity: a file that `stream-node identity create` has made, or an OwnIdentity.
    peer: the identifier of the node, `I` and 64 hexadecimal digits, as `stream-node identity show` prints it on that
        node; or several identifiers, of which the node must have one. There is no certificate authority.
    name: the name of the listener at the node.
    """

    identity: OwnIdentity | str | os.PathLike[str]
    peer: str | tuple[str, ...]
    name: str = LISTENER

    def load(self) -> OwnIdentity:
        """Returns the client's own identity. Raises InvalidArgument if its file cannot be used."""
        from ockam.identity.channel.errors import IdentityFileError
        from ockam.identity.channel.identity_file import load_identity
        from ockam.identity.channel.proof import OwnIdentity

        if isinstance(self.identity, OwnIdentity):
            return self.identity
        try:
            return load_identity(Path(self.identity), int(time.time()))
        except IdentityFileError as error:
            raise InvalidArgument(str(error)) from error


def connection_of(channel: SecureChannel | None, via: Route, framing: str) -> ClientConnection | None:
    """Returns a connection with a channel over the route `via`; None without `channel`. Raises InvalidArgument."""
    if channel is None:
        return None
    if framing != "head":
        raise InvalidArgument(
            "a secure channel needs the framing head: peers of the legacy framing have no such channel"
        )
    # These modules are loaded here, since most clients need no cryptography.
    from ockam.identity.channel.errors import InvalidIdentifier
    from ockam.identity.channel.identity_history import parse_identifier
    from stream_client.core.channel_connection import ChannelConnection, ChannelSettings

    try:
        peers = frozenset(map(parse_identifier, (channel.peer,) if isinstance(channel.peer, str) else channel.peer))
    except InvalidIdentifier as error:
        raise InvalidArgument(f"the peer of a secure channel: {error}") from error
    if not peers:
        raise InvalidArgument("the peer of a secure channel: name the identity of the node that you want to reach")
    return ChannelConnection(ChannelSettings(channel.load(), peers, (*via, local(channel.name))))
