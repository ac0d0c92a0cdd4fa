"""The commands `stream-node identity`, which make and show identities, and `stream-node trust`, which say whose secure
channels a node accepts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from stream_node.cli.options import ConfigOption, DataDirOption, JsonOption
from stream_node.cli.output import columns, counted, say
from stream_node.cli.values import UsageError

FileOption = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="The file of the identity. Without it: that of your user."),
]
OfNodeOption = Annotated[
    str | None, typer.Option("--data-dir", help="A node's data directory: the identity of this node.")
]
IdentifierArgument = Annotated[str, typer.Argument(help="The identifier: I and 64 hexadecimal digits.")]


def register(app: typer.Typer) -> None:
    identity = typer.Typer(help="Make and show identities for secure channels.", no_args_is_help=True)
    identity.command("create")(create)
    identity.command("show")(show)
    app.add_typer(identity, name="identity")
    trust = typer.Typer(
        help="Say whose secure channels a node accepts. Without anybody: nobody's.", no_args_is_help=True
    )
    for name, command in (("add", add), ("list", list_all), ("remove", remove)):
        trust.command(name)(command)
    app.add_typer(trust, name="trust")


def create(file: FileOption = None, data_dir: OfNodeOption = None, as_json: JsonOption = False) -> None:
    """Make a new identity and print its identifier. Only you can read its file, which has secret keys.

    Example: stream-node identity create
    """
    from ockam.identity.channel.identity_file import create_identity

    chosen = _file(file, data_dir)
    identity = create_identity(chosen, int(time.time()))
    say(as_json, {"identifier": str(identity), "file": str(chosen)}, str(identity))


def show(file: FileOption = None, data_dir: OfNodeOption = None, as_json: JsonOption = False) -> None:
    """Print the identifier of an identity, which others need to trust it or to recognise it.

    Example: stream-node identity show --data-dir ./data
    """
    from ockam.identity.channel.identity_file import load_identity

    chosen = _file(file, data_dir)
    identity = load_identity(chosen, int(time.time()))
    say(as_json, {"identifier": str(identity), "file": str(chosen)}, str(identity))


def add(
    identifier: IdentifierArgument,
    name: Annotated[str, typer.Option(help="A name for people, for example whose it is.")] = "",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trust an identity: it may open secure channels to the node. A running node notices this within a second.

    Example: stream-node trust add I10253701dafcc65a621ad9fb4097cb327c541de78827713320b749cbbdbd2e9f --name alice
    """
    from ockam.identity.channel.identity_history import parse_identifier
    from ockam.identity.channel.trust_list import change_trusted

    key, file = parse_identifier(identifier), _trust_file(config, data_dir)
    if any(character in name for character in "\r\n"):
        raise UsageError("a name has one line")
    is_new = key not in change_trusted(file, lambda trusted: {**trusted, key: name or trusted.get(key, "")})
    text = f"{identifier} is trusted" if is_new else f"{identifier} was trusted already"
    say(as_json, {"identifier": identifier, "name": name, "added": is_new, "file": str(file)}, text)


def list_all(config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """List the identities that may open secure channels to the node.

    Example: stream-node trust list --data-dir ./data
    """
    from ockam.identity.channel.identity_history import format_identifier
    from ockam.identity.channel.trust_list import load_trusted
    from stream_node.node.config_sources import load_config

    settings = load_config({"data_dir": data_dir}, file=config)
    found = {format_identifier(key): name for key, name in load_trusted(_trust_file(config, data_dir)).items()}
    rows = [{"identifier": each, "name": name, "from": "file"} for each, name in found.items()]
    rows += [
        {"identifier": each, "name": "", "from": "settings"}
        for each in settings.secure_channel_trusted
        if each not in found
    ]
    anyone = settings.secure_channel_trust_anyone
    if rows:
        text = list(columns([("identifier", "name", "from"), *(tuple(row.values()) for row in rows)]))
    else:
        text = [] if anyone else ["nobody is trusted, so nobody can open a secure channel"]
    if anyone:
        text.append("everybody is trusted: secure_channel_trust_anyone is set")
    say(as_json, {"trusted": rows, "anyone": anyone}, text)


def remove(
    identifier: IdentifierArgument,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop trusting an identity. A running node ends its channels within a second.

    Example: stream-node trust remove I10253701dafcc65a621ad9fb4097cb327c541de78827713320b749cbbdbd2e9f
    """
    from ockam.identity.channel.identity_history import parse_identifier
    from ockam.identity.channel.trust_list import change_trusted
    from stream_node.node.config_sources import load_config

    key, file = parse_identifier(identifier), _trust_file(config, data_dir)
    before = change_trusted(file, lambda trusted: {each: name for each, name in trusted.items() if each != key})
    was_there = key in before
    if identifier in load_config({"data_dir": data_dir}, file=config).secure_channel_trusted:
        raise UsageError(f"{identifier} is trusted by the setting secure_channel_trusted; take it out there")
    report = {"identifier": identifier, "removed": was_there, "file": str(file)}
    left = counted(len(before) - was_there, "trusted identity").replace("identitys", "identities")
    text = f"{identifier} is not trusted any more" if was_there else f"{identifier} was not trusted"
    say(as_json, report, f"{text}; {left} left")


def _file(file: Path | None, data_dir: str | None) -> Path:
    from stream_node.node.channel_services import node_identity_file, user_identity_file

    if file is not None and data_dir is not None:
        raise UsageError("--file and --data-dir are two identities; leave one out")
    if file is not None:
        return file
    return user_identity_file() if data_dir is None else node_identity_file(data_dir)


def _trust_file(config: Path | None, data_dir: str | None) -> Path:
    from stream_node.node.channel_services import trust_file
    from stream_node.node.config_sources import load_config

    return trust_file(load_config({"data_dir": data_dir}, file=config).data_dir)
