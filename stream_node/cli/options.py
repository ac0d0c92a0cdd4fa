"""The options that many commands share. Each is defined once, so that it has the same name and help text everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli.completion import complete_context, complete_stream
from stream_node.cli.values import UsageError


def not_empty(text: str | None) -> str | None:
    """Returns a name unchanged. Raises UsageError for an empty name, as an unset variable in "$NAME" gives it."""
    if text == "":
        raise UsageError("a name is empty; write one, such as orders")
    return text


def check_one_or_all(partition: int | None, all_partitions: bool) -> None:
    if all_partitions and partition is not None:
        raise UsageError("--partition and --all-partitions say different things; leave one out")


NodeOption = Annotated[
    str | None,
    typer.Option("--node", metavar="HOST:PORT", envvar="STREAM_NODE_ADDRESS", help="The node to talk to."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="The name of the node's context (see `context add`).",
        autocompletion=complete_context,
    ),
]
StreamArgument = Annotated[
    str, typer.Argument(callback=not_empty, help="The name of the stream.", autocompletion=complete_stream)
]
ViaOption = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help="Go through the node to another node, at this address. May be repeated."),
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, help="Only this partition. Without it, all partitions.")
]
AllOption = Annotated[
    bool, typer.Option("--all-partitions", help="All partitions of the stream, as without --partition.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the changes without making them.")]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation. Without a terminal, this is needed.")
]
DataDirOption = Annotated[str | None, typer.Option(help="The data directory of a node, running or not.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file with settings.")]
ListenOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The address to listen at. Port 0 picks a free port.")
]
HttpOption = Annotated[
    list[str] | None,
    typer.Option(
        "--http", metavar="HOST:PORT", help="Listen for HTTP, too. Port 0 picks a free port. May be repeated."
    ),
]
ForwardOption = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help="Another node that clients may reach through this node. May be repeated."),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(help="The lowest level of log lines: debug, info, warning or error."),
]
