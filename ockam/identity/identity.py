"""Identity: who the other side of a connection or channel has proved to be. No route or payload can change it."""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["anonymous", "local", "certificate", "token", "channel", "worker"]


class Identity(msgspec.Struct, frozen=True):
    """The other side of a connection or channel, or a worker of this node.

    source: how the identity was proved.
        anonymous: nothing was proved; the other side of a plain connection.
        local: a worker of this node.
        certificate: a client certificate in TLS.
        token: a token that the client sent first on its connection.
        channel: an Ockam secure channel.
        worker: a worker that the operator has put on this node.
    name: the name within this source, for example the common name of a certificate, or the address of a worker; empty
    for anonymous."""

    source: Source
    name: str = ""

    def __str__(self) -> str:
        """The text of the identity in rules, logs and answers, for example `certificate:alice` or `anonymous`."""
        return f"{self.source}:{self.name}" if self.name else self.source


ANONYMOUS = Identity("anonymous")
"""The identity of a plain connection."""
NODE = Identity("local", "node")
"""The identity of this node's own workers."""
