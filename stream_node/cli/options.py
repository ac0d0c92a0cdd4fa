"""The options that commands share, so that each is spelt, and explained, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli.values import UsageError


def not_empty(text: str | None) -> str | None:
    """For names, which no node takes empty; "$NAME" of a variable that is not set is the usual cause."""
    if text == "":
        raise UsageError("a name is empty; write one, such as orders")
    return text


NodeOption = Annotated[
    str | None,
    typer.Option("--node", metavar="HOST:PORT", envvar="STREAM_NODE_ADDRESS", help="The node to talk to."),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="The node that `context add` gave this name.")
]
ViaOption = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help="Reach the node's neighbour there through it; may be repeated."),
]
PartitionOption = Annotated[int, typer.Option(min=0, help="Which partition of the stream.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON, one object a line.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
DataDirOption = Annotated[str | None, typer.Option(help="The data directory of a node, running or not.")]
ConfigOption = Annotated[Path | None, typer.Option(help="Settings in TOML.")]
ListenOption = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Port 0 picks a free one.")]
ForwardOption = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help="A node that peers may reach through this one; may be repeated."),
]
LogLevelOption = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
