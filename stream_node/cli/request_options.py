"""The options that all commands with --node share. `stream_node.cli.commands.with_options` adds them to a command, and
`GIVEN.get()` returns their values while the command runs."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

import typer

from stream_node.cli.options import ENV
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from ockam.actors.address import Route
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token
    from stream_client import SecureChannel
    from stream_node.cli.contexts import Target

CONTACT_TIMEOUT_S = 5.0
"""The longest wait for the first answer of a node. One whose database is silent answers within
`stream_node.care.write_trials.TRIAL_S_MAX`."""

SYSTEM = "system"
"""The value of --tls-ca that stands for the authorities that the system trusts."""


class TlsOptions(NamedTuple):
    tls_ca: Annotated[
        str | None,
        ENV,
        "FILE",
        "Connect with TLS. A PEM file with the authorities of the node's certificate, or the word system.",
    ] = None
    tls_cert: Annotated[
        str | None, ENV, "FILE", "A PEM file with your certificate, which proves to the node who you are."
    ] = None
    tls_key: Annotated[str | None, ENV, "FILE", "A PEM file with its private key."] = None
    tls_server_name: Annotated[
        str | None, ENV, "NAME", "The name that the node's certificate must have, if it is not that in the address."
    ] = None

    def make(self) -> Tls | None:
        """Returns the TLS settings, with absolute paths; None if no option is given. Raises UsageError."""
        if self.tls_ca is None and self.tls_cert is None:
            if self.tls_key is not None or self.tls_server_name is not None:
                raise UsageError("--tls-key and --tls-server-name need --tls-ca or --tls-cert")
            return None
        from ockam.identity.tls import Tls

        files = (self.tls_ca, self.tls_cert, self.tls_key)
        trusted, shown, secret = (None if file in (None, SYSTEM) else os.path.abspath(file) for file in files)
        return Tls(trusted, shown, secret, self.tls_server_name)


NO_TLS = TlsOptions()


class ChannelOptions(NamedTuple):
    peer: Annotated[
        str | None,
        ENV,
        "IDENTIFIER",
        "Open a secure channel to the node, which must have this identity. Several are separated by commas.",
    ] = None
    identity: Annotated[
        str | None,
        ENV,
        "FILE",
        "The file of your own identity for --peer. Without it: that of your user (see `identity create`).",
    ] = None
    channel_listener: Annotated[
        str | None,
        ENV,
        "NAME",
        "The name of the listener for secure channels on the node. [default: secure_channel; Ockam's Rust nodes: api]",
    ] = None

    def make(self, target: Target) -> SecureChannel | None:
        """Returns the secure channel to a node; None if neither an option nor the target names a peer. Raises
        UsageError for another option without a peer: a channel to an unknown peer is no protection."""
        chosen = self.peer or target.peer
        if chosen is None:
            if self.identity is not None or self.channel_listener is not None:
                lone = "--identity" if self.identity is not None else "--channel-listener"
                raise UsageError(f"{lone} needs --peer, the identity of the node that you want to reach")
            return None
        from stream_client import SecureChannel
        from stream_client.connecting import LISTENER
        from stream_node.node.identity.channel_services import user_identity_file

        file = self.identity or target.identity or user_identity_file()
        peers = tuple(text.strip() for text in chosen.split(","))
        return SecureChannel(
            identity=file, peer=peers, name=self.channel_listener or target.channel_listener or LISTENER
        )


NO_CHANNEL = ChannelOptions()


VARIABLE = "STREAM_NODE_TOKEN"
TokenFileOption = Annotated[
    str | None,
    ENV,
    "FILE",
    "A file with your token, which proves to the node who you are. Or set STREAM_NODE_TOKEN to the token itself; "
    "no option takes it, because everybody on the machine can see the options of a process.",
]


class ServiceOptions(NamedTuple):
    service: Annotated[
        str | None, ENV, "NAME", "The name of the stream service on that node. Real Ockam services use `stream`."
    ] = None
    index_service: Annotated[
        str | None,
        ENV,
        "NAME",
        "The name of the index service on that node. Without it: the name of --service with _index added, as in "
        "stream_index.",
    ] = None
    framing: Annotated[
        Literal["head", "legacy", "auto"] | None,
        ENV,
        "The framing of messages on the connection: legacy for Ockam services from before June 2024, auto to "
        "find it out. Without it: head.",
    ] = None


NO_SERVICES = ServiceOptions()


class RequestOptions(NamedTuple):
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001),
        "SECONDS",
        "The longest wait for an answer. Without it: 5 s for the first answer of the node, 30 s for later answers.",
    ] = None
    tls_options: TlsOptions = NO_TLS
    token_file: TokenFileOption = None
    channel: ChannelOptions = NO_CHANNEL
    services: ServiceOptions = NO_SERVICES

    @property
    def tls(self) -> Tls | None:
        return self.tls_options.make()

    @property
    def token(self) -> Token | None:
        """Returns the token of --token-file, otherwise that of STREAM_NODE_TOKEN; None if neither is given."""
        from ockam.identity.token import Token

        if self.token_file is not None:
            return Token(file=os.path.abspath(self.token_file))
        return Token(variable=VARIABLE) if os.environ.get(VARIABLE) else None

    @property
    def contact_timeout_s(self) -> float:
        return CONTACT_TIMEOUT_S if self.timeout is None else self.timeout


GIVEN: ContextVar[RequestOptions] = ContextVar("request_options", default=RequestOptions())  # noqa: B039  (frozen)


class Reaching(TypedDict):
    """Arguments of the `connect` functions of our clients: how a command reaches its node."""

    via: Route
    tls: Tls | None
    token: Token | None
    channel: SecureChannel | None


def reaching(target: Target, given: RequestOptions | None = None) -> Reaching:
    """Returns the way to this node as the `connect` functions take it, from the options or else its context. given:
    by default the options of the running command. Raises UsageError."""
    from ockam.actors.address import tcp

    given = given or GIVEN.get()
    return {
        "via": tuple(map(tcp, target.via)),
        "tls": given.tls or target.tls,
        "token": given.token or target.token,
        "channel": given.channel.make(target),
    }


def services_of(target: Target, given: RequestOptions) -> dict[str, Any]:
    services = given.services
    return {
        "service": services.service or target.service,
        # The index service of the context belongs to its stream service, so --service replaces both.
        "index_service": services.index_service or (None if services.service else target.index_service),
        "framing": services.framing or target.framing,
    }


def proof_for(target: Target) -> tuple[Tls | None, Token | None]:
    """Returns the TLS settings and the token by which a command that opens no secure channel reaches a node."""
    given = GIVEN.get()
    return given.tls or target.tls, given.token or target.token
