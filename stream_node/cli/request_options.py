"""The options that all commands with --node share: timeout, TLS, token, secure channel, services and framing.
`with_request_options` adds them to a command, so no command has them in its signature. `request_options()` returns
their values while the command runs."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from stream_node.cli.channel_options import CHANNEL_OPTIONS, make_channel
from stream_node.cli.token_options import TokenFileOption, make_token
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token
    from stream_client import SecureChannel
    from stream_node.cli.contexts import Target

CONTACT_TIMEOUT_S = 2.0
"""The longest wait for the first answer of a node, unless --timeout is given. Running nodes answer in milliseconds."""
STANDING_TIMEOUT_S = 5.0
"""The same for commands that ask for the state of a node.
A node whose database is silent reports that after `stream_node.care.write_trials.TRIAL_S_MAX`."""

TimeoutOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        metavar="SECONDS",
        help="The longest wait for an answer. Without it: 2 s for the first answer of the node, 30 s for later "
        "answers.",
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="NAME",
        envvar="STREAM_NODE_SERVICE",
        help="The name of the stream service on that node. Real Ockam services use `stream`.",
    ),
]
IndexServiceOption = Annotated[
    str | None,
    typer.Option(
        "--index-service",
        metavar="NAME",
        envvar="STREAM_NODE_INDEX_SERVICE",
        help="The name of the index service on that node. Without it: the name of --service with _index added, as in "
        "stream_index.",
    ),
]
FramingOption = Annotated[
    Literal["head", "legacy", "auto"] | None,
    typer.Option(
        "--framing",
        envvar="STREAM_NODE_FRAMING",
        help="The framing of messages on the connection: legacy for Ockam services from before June 2024, auto to "
        "find it out. Without it: head.",
    ),
]
TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        envvar="STREAM_NODE_TLS_CA",
        help="Connect with TLS. A PEM file with the authorities of the node's certificate, or the word system.",
    ),
]
TlsCertificateOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        envvar="STREAM_NODE_TLS_CERT",
        help="A PEM file with your certificate, which proves to the node who you are.",
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", envvar="STREAM_NODE_TLS_KEY", help="A PEM file with its private key."),
]
TlsServerNameOption = Annotated[
    str | None,
    typer.Option(
        "--tls-server-name",
        metavar="NAME",
        envvar="STREAM_NODE_TLS_SERVER_NAME",
        help="The name that the node's certificate must have, if it is not that in the address.",
    ),
]


TLS_OPTIONS: dict[str, Any] = {
    "tls_ca": TlsCaOption,
    "tls_cert": TlsCertificateOption,
    "tls_key": TlsKeyOption,
    "tls_server_name": TlsServerNameOption,
}
"""The options of TLS by name, in the order of the parameters of `make_tls`."""
SYSTEM = "system"
"""The value of --tls-ca that stands for the authorities that the system trusts."""


class RequestOptions(NamedTuple):
    """The values of the shared options; None for an option that was not given.
    peer, identity, channel_listener: for a secure channel, the identifier of the node, the file of the own identity,
    and the name of the listener on the node."""

    timeout: float | None = None
    service: str | None = None
    index_service: str | None = None
    framing: Literal["head", "legacy", "auto"] | None = None
    tls: Tls | None = None
    token: Token | None = None
    peer: str | None = None
    identity: str | None = None
    channel_listener: str | None = None

    def contact_timeout_s(self, usual_s: float = CONTACT_TIMEOUT_S) -> float:
        return usual_s if self.timeout is None else self.timeout


_given: ContextVar[RequestOptions] = ContextVar("request_options", default=RequestOptions())  # noqa: B039  (frozen)


def request_options() -> RequestOptions:
    return _given.get()


def tls_for(target: Target) -> Tls | None:
    """Returns the TLS for this node: of the options if they are given, otherwise of its context."""
    return request_options().tls or target.tls


def token_for(target: Target) -> Token | None:
    """Returns the token for this node: of --token-file or STREAM_NODE_TOKEN, otherwise of its context."""
    return request_options().token or target.token


def channel_for(target: Target) -> SecureChannel | None:
    """Returns the secure channel to this node; None if neither the options nor its context want one."""
    given = request_options()
    return make_channel(given.peer, given.identity, given.channel_listener, target)


def make_tls(ca: str | None, certificate: str | None, key: str | None, server_name: str | None) -> Tls | None:
    """Returns the TLS of the options, if given, with absolute paths. Raises UsageError if a key or a name is given
    alone."""
    if ca is None and certificate is None:
        if key is not None or server_name is not None:
            raise UsageError("--tls-key and --tls-server-name need --tls-ca or --tls-cert")
        return None
    from ockam.identity.tls import Tls

    trusted, shown, secret = (
        None if file in (None, SYSTEM) else os.path.abspath(file) for file in (ca, certificate, key)
    )
    return Tls(trusted, shown, secret, server_name)


def with_request_options(
    command: Callable[..., None], *, speaks_blocks: bool = False, tls_only: bool = False
) -> Callable[..., None]:
    """Adds the shared options to a command that has --node. Returns any other command unchanged.
    speaks_blocks: the command gets only --timeout and the options of TLS, tokens and secure channels. tls_only: it gets
    only the options of TLS and tokens."""
    # typer reads the options of a command from its signature, so the shared ones are added there.
    own = inspect.signature(command, eval_str=True).parameters
    if "node" not in own:
        return command
    proving: dict[str, Any] = {**TLS_OPTIONS, "token_file": TokenFileOption}
    shared = {"timeout": TimeoutOption, **proving, **CHANNEL_OPTIONS}
    if tls_only:
        shared = proving
    elif not speaks_blocks:
        shared |= {"service": ServiceOption, "index_service": IndexServiceOption, "framing": FramingOption}
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    added = [inspect.Parameter(name, named, default=None, annotation=kind) for name, kind in shared.items()]
    parameters = [*own.values(), *added]

    @functools.wraps(command)
    def typed(**given: Any) -> None:
        # The command itself gets only its own options; it finds the shared ones by `request_options`.
        values = {name: given.pop(name) for name in shared}
        tls = make_tls(*(values.pop(name) for name in TLS_OPTIONS))
        token = make_token(values.pop("token_file"))
        before = _given.set(RequestOptions(**values, tls=tls, token=token))
        try:
            command(**given)
        finally:
            _given.reset(before)

    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {each.name: each.annotation for each in parameters}
    return typed
