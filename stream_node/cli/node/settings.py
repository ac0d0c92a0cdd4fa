"""The commands `stream-node config`, about settings, and `stream-node context`, which give names to nodes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stream_node.cli.options import (
    NO_CHANNEL,
    NO_SERVICES,
    NO_TLS,
    RUNS,
    VARIABLE,
    ChannelOptions,
    ConfigOption,
    DataDirOption,
    ForwardOption,
    ListenOption,
    LogLevelOption,
    ServiceOptions,
    TlsOptions,
    TokenFileOption,
    ViaOption,
    flags_of,
)
from stream_node.cli.output import AS_JSON, columns, counted, say, say_json, tell
from stream_node.cli.values import UsageError

if TYPE_CHECKING or RUNS:
    import msgspec

    from ockam.files.durable_files import make_folder, write_durably
    from ockam.identity.token import Token, TokenError, hide_tokens
    from stream_node.cli.contexts import (
        ContextError,
        Target,
        add_context,
        contexts_file,
        load_contexts,
        remove_context,
        save_contexts,
        use_context,
    )
    from stream_node.node.config import FIELDS, Config, ConfigError, shown, without_effect

NameArgument = Annotated[str, typer.Argument(), "The name of the context."]


class FlagOptions(NamedTuple):
    config: ConfigOption = None
    data_dir: DataDirOption = None
    listen: ListenOption = None
    allow_forward: ForwardOption = None
    log_level: LogLevelOption = None


NO_FLAGS = FlagOptions()


def config_check(
    file: Annotated[Path | None, typer.Argument(), "A TOML file with settings, as for --config."] = None,
    flags: FlagOptions = NO_FLAGS,
) -> None:
    """Check the settings from a file, the environment and the flags without starting a node, and the files that they
    name. The exit code is 2 if something is wrong.

    Example: stream-node config check node.toml
    """
    from stream_node.node.config_sources import check_start, load_effective

    if file is not None and flags.config is not None:
        raise UsageError("give the file either as FILE or with --config")
    try:
        effective, settings = load_effective(flags_of(flags), file=flags.config or file)
        check_start(effective)
    except ConfigError as error:
        if not AS_JSON.get():
            raise
        say_json({"ok": False, "settings": len(FIELDS), "given": None, "mistakes": error.mistakes})
        raise typer.Exit(2) from error
    _report_without_effect(effective)
    given = sum(setting.origin != "default" for setting in settings)
    report = {"ok": True, "settings": len(settings), "given": given, "mistakes": []}
    say(report, f"{counted(given, 'setting')} given, {len(settings) - given} left at the default: all right")


def config_show(flags: FlagOptions = NO_FLAGS) -> None:
    """Print the value that `serve` would use for each setting, and where the value was set.

    Example: STREAM_NODE_LOG_LEVEL=debug stream-node config show --config node.toml
    """
    from stream_node.node.config_sources import load_effective

    effective, found = load_effective(flags_of(flags), file=flags.config)
    _report_without_effect(effective)
    settings: list[dict[str, Any]] = msgspec.to_builtins(found)
    for each in settings:
        # A token that was given in place of its file must not be shown.
        each["value"] = _without_tokens(each["value"])
    rows = [("setting", "value", "from")]
    rows += [(each["name"], shown(each["value"]), each["where"] or each["origin"]) for each in settings]
    say({"settings": settings}, columns(rows))


def add(
    name: NameArgument,
    address: Annotated[str, typer.Argument(), "HOST:PORT", "The address of the node."],
    via: ViaOption = None,
    services: ServiceOptions = NO_SERVICES,
    tls_options: TlsOptions = NO_TLS,
    token_file: TokenFileOption = None,
    channel: ChannelOptions = NO_CHANNEL,
    use: Annotated[
        bool, "Make this context the current one. The first context always becomes the current one."
    ] = False,
    replace: Annotated[bool, "Replace the context that has this name."] = False,
) -> None:
    """Add a context, which is a name for a node.

    Example: stream-node context add office 10.0.0.5:4000 --use

    With TLS: stream-node context add office 10.0.0.5:4000 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key

    With a token: stream-node context add office 10.0.0.5:4000 --tls-ca ca.pem --token-file me.token

    With a secure channel: stream-node context add office 10.0.0.5:4000 --peer IDENTIFIER

    For a real Ockam service: stream-node context add hub 10.0.0.7:4000 --service stream --framing auto
    """
    file = contexts_file()
    # The paths of a context must be valid from every folder.
    target = Target(
        address=address,
        via=tuple(via or ()),
        service=services.service or "stream_service",
        index_service=services.index_service,
        framing=services.framing or "head",
        tls=tls_options.make(),
        peer=channel.peer,
        identity=None if channel.identity is None else os.path.abspath(channel.identity),
        channel_listener=channel.channel_listener,
    )
    if channel.peer is not None:
        from ockam.identity.channel.identity_history import parse_identifier

        for text in channel.peer.split(","):
            parse_identifier(text.strip())
    contexts = add_context(load_contexts(file), name, target, replace=replace, use=use)
    # The context holds no secret: it names the file of its token.
    token = _keep_token(name, token_file)
    contexts.targets[name] = msgspec.structs.replace(contexts.targets[name], token_file=token)
    save_contexts(file, contexts)
    # The context that is replaced may have stored a token, which nothing uses any more.
    kept = _kept_token_file(name)
    if token is None or os.path.realpath(token) != os.path.realpath(kept):
        kept.unlink(missing_ok=True)
    target = contexts.targets[name]
    current = contexts.current == name
    say(_context(name, target, current), f"{name} is {target.address}{', in use' if current else ''}")


def list_all() -> None:
    """List the contexts. A star marks the current one.

    Example: stream-node context list --json
    """
    contexts = load_contexts(contexts_file())
    targets = sorted(contexts.targets.items())
    report = [_context(name, target, name == contexts.current) for name, target in targets]
    rows = [("*" if name == contexts.current else " ", name, _way(target)) for name, target in targets]
    say({"contexts": report}, columns(rows) if rows else "no contexts")


def use(
    name: Annotated[
        str | None, typer.Argument(), "The name of the context. Without a name, no context is used."
    ] = None,
) -> None:
    """Make a context the current one. Commands use it unless --node, --context or STREAM_NODE_ADDRESS is given.

    Example: stream-node context use office
    """
    file = contexts_file()
    contexts = use_context(load_contexts(file), name)
    save_contexts(file, contexts)
    text = "no context is in use" if name is None else f"{name} ({contexts.targets[name].address}) is in use"
    say({"current": name}, text)


def remove(name: NameArgument) -> None:
    """Remove a context. The node itself is not contacted.

    Example: stream-node context remove office
    """
    file = contexts_file()
    contexts = remove_context(load_contexts(file), name)
    save_contexts(file, contexts)
    _kept_token_file(name).unlink(missing_ok=True)
    say({"removed": name, "current": contexts.current}, f"{name} is removed")


def _kept_token_file(context: str) -> Path:
    """Returns the file in which a context stores its token, if the token was given by STREAM_NODE_TOKEN."""
    # A context may have any name, and a file may not.
    return contexts_file().with_name(f"token-{hashlib.sha256(context.encode()).hexdigest()[:16]}")


def _keep_token(context: str, file: str | None) -> str | None:
    """Returns the path of the file with the token of a new context: the file of --token-file, or a new private file
    with the token of STREAM_NODE_TOKEN. None: neither is given. Raises UsageError, ContextError."""
    try:
        if file is not None:
            Token(file=file).read()
            return os.path.abspath(file)
        if not os.environ.get(VARIABLE):
            return None
        # The variable is gone in the next shell, so its token is stored beside the contexts.
        kept = _kept_token_file(context)
        text = Token(variable=VARIABLE).read()
    except TokenError as error:
        raise UsageError(str(error)) from error
    try:
        make_folder(kept.parent)
        write_durably(kept, f"{text}\n".encode(), mode=0o600)
    except OSError as error:
        raise ContextError(f"cannot write the token to {kept}: {error.strerror or error}") from error
    return str(kept)


def _report_without_effect(effective: Config) -> None:
    for name, reason in without_effect(effective).items():
        tell(f"{name} has no effect: {reason}")


def _context(name: str, target: Target, current: bool) -> dict[str, Any]:
    tls = None if target.tls is None else msgspec.to_builtins(target.tls)
    return {"name": name, **msgspec.structs.asdict(target), "tls": tls, "current": current}


def _way(target: Target) -> str:
    usual = Target(target.address)
    parts = ("service", "index_service", "framing")
    words = [f"{part}={getattr(target, part)}" for part in parts if getattr(target, part) != getattr(usual, part)]
    proofs = {"token": target.token_file, "secure channel": target.peer, "tls": target.tls}
    return " ".join([target.address, *target.via, *words, *(name for name, each in proofs.items() if each is not None)])


def _without_tokens(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_tokens(each) for each in value]
    return hide_tokens(value) if isinstance(value, str) else value
