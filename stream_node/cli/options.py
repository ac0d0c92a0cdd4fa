"""The options that many commands share, with the same name and help text everywhere, and their completion in a shell.
If the node cannot be asked, there are no completions: an error would stand in the line. `with_options` of
`stream_node.cli.commands` adds the `RequestOptions` to each command with --node; `GIVEN.get()` returns their values."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

import typer

from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from ockam.actors.address import Route
    from ockam.identity.tls import Tls
    from ockam.identity.token import Token
    from stream_client import SecureChannel
    from stream_client.blocking import StreamClient
    from stream_node.cli.contexts import Target
    from stream_node.node.config import Config

PATIENCE_S = 1.0
LISTED_MAX = 1_000


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    return _asked(ctx, lambda client: (each.stream_name for each in client.list_streams(incomplete)))


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of consumers that have saved a position in the given stream, else in any stream."""
    from stream_client.blocking import list_positions

    stream = ctx.params.get("stream")
    found = _asked(ctx, lambda client: (each.client_id for each in list_positions(client, stream_name=stream)))
    return [each for each in found if each.startswith(incomplete)]


def complete_context(incomplete: str) -> list[str]:
    from stream_node.cli.contexts import ContextError, contexts_file, load_contexts

    try:
        return [name for name in load_contexts(contexts_file()).targets if name.startswith(incomplete)]
    except ContextError:
        return []


def _asked(ctx: typer.Context, ask: Callable[[StreamClient], Iterable[str]]) -> list[str]:
    from ockam.errors import InvalidAddress
    from stream_client import ClientError, blocking
    from stream_node.cli.commands import take
    from stream_node.cli.contexts import ContextError, resolve_target

    given = take(RequestOptions, dict(ctx.params))
    node = ctx.params.get("node") or os.environ.get("STREAM_NODE_ADDRESS")
    try:
        target = resolve_target(node, ctx.params.get("context"), ctx.params.get("via") or ())
        with blocking.connect(
            target.address,
            answer_timeout_s=PATIENCE_S,
            contact_timeout_s=PATIENCE_S,
            **services_of(target, given),
            **reaching(target, given),
        ) as client:
            return sorted(set(islice(ask(client), LISTED_MAX)))
    except (ClientError, ContextError, InvalidAddress, UsageError):
        return []


def not_empty(text: str | None) -> str | None:
    """Refuses an empty name, such as "$NAME" with an unset variable."""
    if text == "":
        raise UsageError("a name is empty; write one, such as orders")
    return text


IS_HELP = sys.argv[-1] == "--help" and not sys.argv[-2].startswith("-") and "--" not in sys.argv
IS_COMPLETION = "_STREAM_NODE_COMPLETE" in os.environ and len(sys.argv) == 1
RUNS = not (IS_HELP or IS_COMPLETION)
"""Whether this process may run a command. If not, the modules of the commands do not import what the commands use: the
imports take longer than all the rest of a help, or of the completion of a line. An option before --help could take that
word as its value, so then the command may run."""
ENV = object()
"""In the type of an option: a variable sets it, too. That of --tls-ca is STREAM_NODE_TLS_CA."""
NodeOption = Annotated[str | None, typer.Option(envvar="STREAM_NODE_ADDRESS"), "HOST:PORT", "The node to talk to."]
ContextOption = Annotated[
    str | None,
    typer.Option(autocompletion=complete_context),
    "NAME",
    "The name of the node's context (see `context add`).",
]
StreamArgument = Annotated[
    str, typer.Argument(callback=not_empty, autocompletion=complete_stream), "The name of the stream."
]
ViaOption = Annotated[
    list[str] | None, "HOST:PORT", "Go through the node to another node, at this address. May be repeated."
]
PartitionOption = Annotated[int | None, typer.Option(min=0), "Only this partition. Without it, all partitions."]
FollowOption = Annotated[
    bool, typer.Option("--follow/--no-follow"), "At the end, wait for more messages instead of stopping."
]
DryRunOption = Annotated[bool, "Print the changes without making them."]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y"), "Do not ask for a confirmation. Without a terminal, this is needed."
]
DataDirOption = Annotated[str | None, "The data directory of a node, running or not."]
ConfigOption = Annotated[Path | None, "A TOML file with settings."]
ListenOption = Annotated[str | None, "HOST:PORT", "The address to listen at. Port 0 picks a free port."]
ForwardOption = Annotated[
    list[str] | None, "HOST:PORT", "Another node that clients may reach through this node. May be repeated."
]
LogLevelOption = Annotated[str | None, "The lowest level of log lines: debug, info, warning or error."]


def flags_of(group: Any) -> dict[str, Any]:
    """Returns the settings that the options of a group give, as `load_effective` takes them: None if not given."""
    given = {name: value for name, value in group._asdict().items() if name != "config"}
    return {name: tuple(value) or None if isinstance(value, list) else value for name, value in given.items()}


class NodeOptions(NamedTuple):
    node: NodeOption = None
    context: ContextOption = None
    via: ViaOption = None

    def target(self) -> Target:
        from stream_node.cli.contexts import resolve_target

        return resolve_target(self.node, self.context, self.via or ())


class PartitionOptions(NamedTuple):
    partition: PartitionOption = None
    all_partitions: Annotated[bool, "All partitions of the stream, as without --partition."] = False

    def one(self) -> int | None:
        """Returns the chosen partition; None for all of them. Raises UsageError for both options."""
        if self.all_partitions and self.partition is not None:
            raise UsageError("--partition and --all-partitions say different things; leave one out")
        return self.partition


class DirectoryOptions(NamedTuple):
    config: ConfigOption = None
    data_dir: DataDirOption = None

    def load(self) -> Config:
        from stream_node.node.config_sources import load_config

        return load_config({"data_dir": self.data_dir}, file=self.config)


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


class RequestOptions(NamedTuple):
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001),
        "SECONDS",
        "The longest wait for an answer. Without it: 5 s for the first answer of the node, 30 s for later answers.",
    ] = None
    tls_options: TlsOptions = TlsOptions()
    token_file: TokenFileOption = None
    channel: ChannelOptions = ChannelOptions()
    services: ServiceOptions = ServiceOptions()

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


ANY_NODE, ALL_PARTITIONS, ANY_DIRECTORY = NodeOptions(), PartitionOptions(), DirectoryOptions()
NO_TLS, NO_CHANNEL, NO_SERVICES = TlsOptions(), ChannelOptions(), ServiceOptions()
"""The defaults of these groups: no option is given."""
GIVEN: ContextVar[RequestOptions] = ContextVar("request_options", default=RequestOptions())  # noqa: B039  (frozen)


class Reaching(TypedDict):
    """Arguments of the `connect` functions of our clients: how a command reaches its node."""

    via: Route
    tls: Tls | None
    token: Token | None
    channel: SecureChannel | None


def reaching(target: Target, given: RequestOptions | None = None) -> Reaching:
    """Returns the arguments by which a `connect` function reaches this node: those of the options, else of its context.
    given: by default the options of the running command. Raises UsageError."""
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
