"""The commands `stream-node config`, which show and check settings, and `stream-node context`, which give names
to nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_node.cli.channel_options import IdentityOption, ListenerOption, PeerOption, absolute, check_peer
from stream_node.cli.options import (
    ConfigOption,
    DataDirOption,
    ForwardOption,
    JsonOption,
    ListenOption,
    LogLevelOption,
    ViaOption,
)
from stream_node.cli.output import columns, counted, say, say_json, tell
from stream_node.cli.request_options import (
    FramingOption,
    IndexServiceOption,
    ServiceOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsServerNameOption,
    make_tls,
)
from stream_node.cli.token_options import TokenFileOption, keep_token, kept_token_file
from stream_node.cli.values import UsageError

if TYPE_CHECKING:
    from stream_node.cli.contexts import Target
    from stream_node.node.config import Config

STREAM_SERVICE = "stream_service"
NameArgument = Annotated[str, typer.Argument(help="The name of the context.")]


def register(app: typer.Typer) -> None:
    config = typer.Typer(help="Check and show a node's settings, and where each comes from.", no_args_is_help=True)
    config.command("check")(config_check)
    config.command("show")(config_show)
    app.add_typer(config, name="config")
    context = typer.Typer(help="Names for nodes, so that you need not type addresses.", no_args_is_help=True)
    for name, command in (("add", add), ("list", list_all), ("use", use), ("remove", remove)):
        context.command(name)(command)
    app.add_typer(context, name="context")


def config_check(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with settings, as for --config.")] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    allow_forward: ForwardOption = None,
    log_level: LogLevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the settings from a file, the environment and the flags without starting a node, and the files that they
    name. The exit code is 2 if something is wrong.

    Example: stream-node config check node.toml
    """
    from stream_node.node.config import FIELDS, ConfigError
    from stream_node.node.config_sources import check_start
    from stream_node.node.setting_origins import load_effective

    if file is not None and config is not None:
        raise UsageError("give the file either as FILE or with --config")
    try:
        effective, settings = load_effective(
            _flags(data_dir, listen, allow_forward, log_level), file=file if config is None else config
        )
        check_start(effective)
    except ConfigError as error:
        if not as_json:
            raise
        say_json({"ok": False, "settings": len(FIELDS), "given": None, "mistakes": error.mistakes})
        raise typer.Exit(2) from error
    _tell_without_effect(effective)
    given = sum(setting.origin != "default" for setting in settings)
    report = {"ok": True, "settings": len(settings), "given": given, "mistakes": []}
    say(as_json, report, f"{counted(given, 'setting')} given, {len(settings) - given} left at the default: all right")


def config_show(
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    listen: ListenOption = None,
    allow_forward: ForwardOption = None,
    log_level: LogLevelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the value that `serve` would use for each setting, and where the value was set.

    Example: STREAM_NODE_LOG_LEVEL=debug stream-node config show --config node.toml
    """
    import msgspec

    from stream_node.node.setting_origins import load_effective

    effective, found = load_effective(_flags(data_dir, listen, allow_forward, log_level), file=config)
    _tell_without_effect(effective)
    settings: list[dict[str, Any]] = msgspec.to_builtins(found)
    for each in settings:
        # A token in place of its file would be shown.
        each["value"] = _without_tokens(each["value"])
    rows = [("setting", "value", "from")]
    rows += [(each["name"], _shown(each["value"]), each["where"] or each["origin"]) for each in settings]
    say(as_json, {"settings": settings}, columns(rows))


def add(
    name: NameArgument,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The address of the node.")],
    via: ViaOption = None,
    service: ServiceOption = None,
    index_service: IndexServiceOption = None,
    framing: FramingOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    tls_server_name: TlsServerNameOption = None,
    token_file: TokenFileOption = None,
    peer: PeerOption = None,
    identity: IdentityOption = None,
    channel_listener: ListenerOption = None,
    use: Annotated[
        bool,
        typer.Option(
            "--use", help="Make this context the current one. The first context always becomes the current one."
        ),
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the context that has this name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a context, which is a name for a node.

    Example: stream-node context add office 10.0.0.5:4000 --use

    With TLS: stream-node context add office 10.0.0.5:4000 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key

    With a token: stream-node context add office 10.0.0.5:4000 --tls-ca ca.pem --token-file me.token

    With a secure channel: stream-node context add office 10.0.0.5:4000 --peer IDENTIFIER

    For a real Ockam service: stream-node context add hub 10.0.0.7:4000 --service stream --framing auto
    """
    import msgspec

    from stream_node.cli.contexts import Target, add_context, contexts_file, load_contexts, save_contexts

    file = contexts_file()
    tls = make_tls(tls_ca, tls_cert, tls_key, tls_server_name)
    target = Target(
        address=address,
        via=tuple(via or ()),
        service=service or STREAM_SERVICE,
        index_service=index_service,
        framing=framing or "head",
        tls=tls,
        peer=check_peer(peer),
        identity=absolute(identity),
        channel_listener=channel_listener,
    )
    contexts = add_context(load_contexts(file), name, target, replace=replace, use=use)
    # The context holds no secret: it names the file of its token.
    token = keep_token(name, token_file)
    contexts.targets[name] = msgspec.structs.replace(contexts.targets[name], token_file=token)
    save_contexts(file, contexts)
    target = contexts.targets[name]
    current = contexts.current == name
    say(as_json, _context(name, target, current), f"{name} is {target.address}{', in use' if current else ''}")


def list_all(as_json: JsonOption = False) -> None:
    """List the contexts. A star marks the current one.

    Example: stream-node context list --json
    """
    from stream_node.cli.contexts import contexts_file, load_contexts

    contexts = load_contexts(contexts_file())
    targets = sorted(contexts.targets.items())
    report = [_context(name, target, name == contexts.current) for name, target in targets]
    rows = [("*" if name == contexts.current else " ", name, _way(target)) for name, target in targets]
    say(as_json, {"contexts": report}, columns(rows) if rows else "no contexts")


def use(
    name: Annotated[
        str | None, typer.Argument(help="The name of the context. Without a name, no context is used.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a context the current one. Commands use it unless --node, --context or STREAM_NODE_ADDRESS is given.

    Example: stream-node context use office
    """
    from stream_node.cli.contexts import contexts_file, load_contexts, save_contexts, use_context

    file = contexts_file()
    contexts = use_context(load_contexts(file), name)
    save_contexts(file, contexts)
    text = "no context is in use" if name is None else f"{name} ({contexts.targets[name].address}) is in use"
    say(as_json, {"current": name}, text)


def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Remove a context. The node itself is not contacted.

    Example: stream-node context remove office
    """
    from stream_node.cli.contexts import contexts_file, load_contexts, remove_context, save_contexts

    file = contexts_file()
    contexts = remove_context(load_contexts(file), name)
    save_contexts(file, contexts)
    kept_token_file(name).unlink(missing_ok=True)
    say(as_json, {"removed": name, "current": contexts.current}, f"{name} is removed")


def _flags(data_dir: Any, listen: Any, allow_forward: Any, log_level: Any) -> dict[str, Any]:
    return {
        "data_dir": data_dir,
        "listen": listen,
        "allow_forward": tuple(allow_forward) if allow_forward else None,
        "log_level": log_level,
    }


def _tell_without_effect(effective: Config) -> None:
    from stream_node.node.config import without_effect

    for name, reason in without_effect(effective).items():
        tell(f"{name} has no effect: {reason}")


def _context(name: str, target: Target, current: bool) -> dict[str, Any]:
    import msgspec

    tls = None if target.tls is None else msgspec.to_builtins(target.tls)
    report = {"name": name, "address": target.address, "via": list(target.via), "service": target.service}
    return report | {
        "index_service": target.index_service,
        "framing": target.framing,
        "tls": tls,
        "token_file": target.token_file,
        "peer": target.peer,
        "identity": target.identity,
        "channel_listener": target.channel_listener,
        "current": current,
    }


def _way(target: Target) -> str:
    """Returns a context as text: its addresses, and its settings that are not defaults."""
    words = [target.address, *target.via]
    words += [] if target.service == STREAM_SERVICE else [f"service={target.service}"]
    words += [] if target.index_service is None else [f"index_service={target.index_service}"]
    words += [] if target.framing == "head" else [f"framing={target.framing}"]
    words += [] if target.token_file is None else ["token"]
    words += [] if target.peer is None else ["secure channel"]
    return " ".join(words if target.tls is None else [*words, "tls"])


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _without_tokens(value: Any) -> Any:
    from ockam.identity.token import hide_tokens

    if isinstance(value, list):
        return [_without_tokens(each) for each in value]
    return hide_tokens(value) if isinstance(value, str) else value
