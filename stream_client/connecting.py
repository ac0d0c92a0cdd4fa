"""`connect`: opens a client of a node. SecureChannel: the settings of its secure channel to that node."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ockam.actors.address import Route, local
from stream_client.arguments import check_tls, check_token, start_tracing, to_address
from stream_client.client import StreamClient
from stream_client.core.client_connection import ClientConnection
from stream_client.core.client_core import ClientCore
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.errors import InvalidArgument
from stream_client.session import ClientSession
from stream_client.shell.base_shell import ANSWER_TIMEOUT_S, BaseShell, Framing, OnLink, Reconnect, ShellSettings

if TYPE_CHECKING:
    from ockam.identity.channel.proof import OwnIdentity
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token

SHELL: ContextVar[type[BaseShell] | None] = ContextVar("SHELL", default=None)
"""The class of the shell that `connect` makes; None: AsyncShell. The blocking `connect` sets BlockingShell."""


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


@asynccontextmanager
async def connect(
    address: str = "127.0.0.1:4000",
    *,
    via: Route = (),
    service: str = STREAM_SERVICE,
    index_service: str | None = None,
    framing: Framing = "head",
    reconnect: Reconnect | None = Reconnect(),  # noqa: B008  (frozen, no state)
    answer_timeout_s: float | None = ANSWER_TIMEOUT_S,
    contact_timeout_s: float | None = None,
    on_link: OnLink | None = None,
    waits: bool = True,
    tls: Tls | None = None,
    token: Token | str | None = None,
    channel: SecureChannel | None = None,
    traces: str | bool = False,
    plain: bool = False,
) -> AsyncIterator[StreamClient]:
    """Opens a client of one node. The end of the block closes the client.

    address: `host:port` of the node to connect to; the default port is 4000.
    via: the route from this node to another node, if the client uses the streams of that other node; empty: it uses the
        streams of the node at `address`.
    service, index_service: the names of the stream service and the index service. Real Ockam services are named
        `stream` and `stream_index`. If `index_service` is None, its name is derived from `service`.
    framing: how messages are delimited on the connection: "head" for Ockam since June 2024, "legacy" for older Ockam.
        "auto" tries "head" first, and uses "legacy" if no answer comes.
    reconnect: the delays between the attempts to replace a lost connection. The client sends all unanswered requests
        again over the new connection. If only the confirm of a push was lost, the message is then stored twice, unless
        its publisher is idempotent. None: after the connection is lost, every request fails with ConnectionLost.
    answer_timeout_s: the seconds that a request waits for its answer before it raises RequestTimeout; None: for ever.
        The pushes of a publisher fail with RequestTimeout when the node answers none of them for this long.
    contact_timeout_s: if the stream service does not answer within this time after the start, the client ends and every
        request fails with NodeUnreachable. It also limits each step of connecting (TCP and TLS, hello, token), but to
        1 s at least and 10 s at most. None: only `answer_timeout_s` applies, and a step takes 10 s at most.
    on_link: a function called with an error when the connection or the route to the services is lost, and called with
        None when it is restored.
    waits: whether `connect` waits for the first connection; if false, the client connects later.
    tls: how the client connects with TLS 1.3: the trusted authorities, and the client's own certificate. The files are
        read again for a new connection if they have changed. None: the connection is not encrypted.
    token: a `Token`, or its text. It proves the client's name to the node at `address` at the beginning of each
        connection, and is sent over TLS or to this machine only. If it is refused later, the client ends with
        AuthenticationFailed.
    channel: opens a secure channel to the node with the services, so that nodes on the route see only encrypted bytes.
        If that node has another identity than `channel.peer`, requests fail with PeerNotTrusted; if it does not accept
        this client's identity, with ChannelRefused. None: no secure channel.
    traces: the URL of a collector of OpenTelemetry, such as http://127.0.0.1:4318. The client sends it a span of each
        push, and tells the node to which trace the push belongs. True: OTEL_EXPORTER_OTLP_ENDPOINT and the other
        standard variables say where the collector is. False: the client makes no spans.
    plain: whether the services have none of our own protocols. Real Ockam services have none, and log each request in
        such a protocol as an error. The client then sends no such request, and raises NotSupported instead. It no
        longer assumes this after a lost connection, or when a new stream has the address that stream nodes give.

    Raises InvalidArgument if `address` is not an address, if a file of `tls`, `token` or `channel` cannot be used, or
    if `traces` are on and the extra `otel` is not installed. Raises AuthenticationFailed if the token is refused, and
    NodeUnreachable if the first connection fails. TlsFailed, a subclass of NodeUnreachable, says what is wrong with
    TLS.
    """
    address = to_address(address)
    check_tls(tls)
    checked = check_token(token)
    asks_route = contact_timeout_s is not None or on_link is not None
    # Inside a secure channel, the services are at its other end.
    connection = connection_of(channel, via, framing)
    shell_class = SHELL.get()
    if shell_class is None:
        # A blocking client needs no AnyIO.
        from stream_client.shell.async_shell import AsyncShell

        shell_class = AsyncShell
    tracing = start_tracing(traces)
    core = ClientCore(
        via=via if channel is None else (),
        service=service,
        index_service=index_service,
        asks_route=asks_route,
        connection=connection,
        tracing=tracing,
    )
    core.service_route.is_assumed_plain = plain
    if on_link is not None:
        core.service_route.on_link = on_link
    try:
        shell = shell_class(core, ShellSettings(address, framing, reconnect, contact_timeout_s, tls, checked))
        async with shell.opened(waits):
            yield StreamClient(ClientSession(address, core, shell, answer_timeout_s))
    finally:
        # The last spans are sent, and the thread that sends them ends.
        if tracing is not None:
            await shell_class.run_blocking(tracing.close)
