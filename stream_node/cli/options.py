"""The options that many commands share, with the same name and help text everywhere, and their completion in a shell.
If the node cannot be asked, there are no completions: an error would stand in the line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from stream_client.blocking import StreamClient
    from stream_node.cli.contexts import Target
    from stream_node.node.config import Config

PATIENCE_S = 1.0
LISTED_MAX = 1_000


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    return _asked(ctx, lambda client: (each.stream_name for each in client.list_streams(incomplete)))


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of consumers that have saved a position in the given stream; without a stream, in any one."""
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
    from stream_node.cli.request_options import RequestOptions, reaching, services_of

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
AllOption = Annotated[bool, "All partitions of the stream, as without --partition."]
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
HttpOption = Annotated[
    list[str] | None, "HOST:PORT", "Listen for HTTP, too. Port 0 picks a free port. May be repeated."
]
GrpcOption = Annotated[
    list[str] | None,
    "HOST:PORT[/SERVICES]",
    "Listen for block nodes and their peers over gRPC, too. /publish serves publishers only, "
    "/subscribe+status readers. May be repeated.",
]
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
    all_partitions: AllOption = False

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


ANY_NODE, ALL_PARTITIONS, ANY_DIRECTORY = NodeOptions(), PartitionOptions(), DirectoryOptions()
"""The defaults of these groups: no option is given."""
