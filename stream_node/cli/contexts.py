"""Keeps contexts: names that a user gives to nodes, in one file of the user's configuration folder, without secrets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs

from ockam.actors.address import DEFAULT_PORT, complete_address
from ockam.files.durable_files import make_folder, write_durably
from ockam.files.parsing import ParseError, parse_json
from ockam.identity.tls import Tls
from ockam.identity.token import Token
from stream_node.node.config import ConfigError, unknown_variables
from stream_service.names import near_names

APPLICATION = "stream-node"
FILE_NAME = "contexts.json"
DEFAULT_NODE = f"127.0.0.1:{DEFAULT_PORT}"
NAME_CHARACTERS_MAX = 64
"""The maximum length of a context name: short enough to type and to fit into a table."""


class ContextError(Exception):
    """A context does not exist, exists already, or cannot be read or saved. The text says what to do."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A node, and how to reach it. For the fields that are options, see `stream_node.cli.options`.

    via: the `host:port` of each further node on the way; the last one is the target. index_service: without it, its
    name is made from `service`. tls: its paths are absolute. peer: one or several identifiers, separated by commas."""

    address: str
    via: tuple[str, ...] = ()
    service: str = "stream_service"
    index_service: str | None = None
    framing: Literal["head", "legacy", "auto"] = "head"
    tls: Tls | None = None
    peer: str | None = None
    identity: str | None = None
    channel_listener: str | None = None
    token_file: str | None = None

    @property
    def token(self) -> Token | None:
        return None if self.token_file is None else Token(file=self.token_file)


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All contexts of a user, by name, and the name of the one in use.
    Invariant: `current` is None or a name in `targets`."""

    current: str | None = None
    targets: dict[str, Target] = {}


def contexts_file() -> Path:
    return Path(platformdirs.user_config_dir(APPLICATION)) / FILE_NAME


def load_contexts(file: Path) -> Contexts:
    """Reads the contexts; there are none if the file does not exist. Raises ContextError."""
    try:
        contexts = parse_json(file.read_bytes(), Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ContextError(f"cannot read the contexts in {file}: {error.strerror or error}") from error
    except ParseError as error:
        raise ContextError(f"the contexts in {file} cannot be read: {error}; correct or remove the file") from error
    if contexts.current is not None and contexts.current not in contexts.targets:
        raise ContextError(f"{file} uses a context {contexts.current!r} that it does not have; correct or remove it")
    return contexts


def save_contexts(file: Path, contexts: Contexts) -> None:
    """Replaces the file in one step, so that a reader finds either the old or the new contexts. Raises ContextError."""
    try:
        make_folder(file.parent)
        write_durably(file, msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
    except OSError as error:
        raise ContextError(f"cannot write the contexts to {file}: {error.strerror or error}") from error


def add_context(contexts: Contexts, name: str, target: Target, *, replace: bool = False, use: bool = False) -> Contexts:
    """Returns the contexts with one added or, with `replace`, replaced. Raises ContextError, InvalidAddress."""
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable() or name.startswith("-"):
        raise ContextError(f"{name!r} cannot name a context; take 1 to {NAME_CHARACTERS_MAX} printable characters")
    if name in contexts.targets and not replace:
        raise ContextError(f"there is a context {name!r} already; choose another name, or say --replace")
    target = msgspec.structs.replace(
        target, address=complete_address(target.address), via=tuple(map(complete_address, target.via))
    )
    current = name if use or not contexts.targets else contexts.current
    return Contexts(current, {**contexts.targets, name: target})


def use_context(contexts: Contexts, name: str | None) -> Contexts:
    if name is not None:
        get_context(contexts, name)
    return Contexts(name, contexts.targets)


def remove_context(contexts: Contexts, name: str) -> Contexts:
    get_context(contexts, name)
    left = {each: target for each, target in contexts.targets.items() if each != name}
    return Contexts(None if contexts.current == name else contexts.current, left)


def get_context(contexts: Contexts, name: str) -> Target:
    target = contexts.targets.get(name)
    if target is None:
        if not contexts.targets:
            make = f"stream-node context add {shlex.quote(name)} HOST:PORT"
            raise ContextError(f"there is no context {name!r}, and no other one; `{make}` makes it")
        near = near_names(name, contexts.targets)
        raise ContextError(f"there is no context {name!r}; there is {near or ', '.join(sorted(contexts.targets))}")
    return target


def resolve_target(node: str | None, context: str | None, via: Sequence[str]) -> Target:
    """Returns the node of a command: the given node, the given context, the current context, or the default node.
    via: the further nodes on the way; they replace those of the context. Raises ContextError, and ConfigError if the
    environment has an unknown STREAM_NODE_… variable."""
    found = find_target(node, context, via)
    return Target(DEFAULT_NODE, tuple(map(complete_address, via))) if found is None else found


def find_target(node: str | None, context: str | None, via: Sequence[str]) -> Target | None:
    """Returns the node as `resolve_target` does, but None in place of the default node. Raises ContextError, and
    ConfigError if the environment has an unknown STREAM_NODE_… variable."""
    # A misspelt variable would have no effect.
    mistakes = unknown_variables(os.environ)
    if mistakes:
        raise ConfigError(*mistakes)
    if node is not None and context is not None:
        raise ContextError(
            f"--context {context} and the node {node} (--node or STREAM_NODE_ADDRESS) are two nodes; leave one out"
        )
    if node is not None:
        return Target(complete_address(node), tuple(map(complete_address, via)))
    contexts = load_contexts(contexts_file())
    name = context if context is not None else contexts.current
    if name is None:
        return None
    target = get_context(contexts, name)
    return msgspec.structs.replace(target, via=tuple(map(complete_address, via)) or target.via)
