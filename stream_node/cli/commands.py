"""All commands, in the order of `stream-node --help`, and `with_options`, which makes them fit for typer.
A command has one parameter for a group of options (a NamedTuple); `with_options` makes one of each option."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import copy_context
from copy import copy
from importlib import import_module
from importlib.util import find_spec
from types import CodeType
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from stream_node.cli.options import ENV, GIVEN, NodeOptions, RequestOptions
from stream_node.cli.output import AS_JSON

Command: TypeAlias = Callable[..., Any]
GroupT = TypeVar("GroupT")

JsonOption = Annotated[bool, typer.Option("--json"), "Print JSON, one object a line."]


def with_options(command: Command, *, left_out: Collection[str] = ()) -> Callable[..., None]:
    """Returns the command for typer: with the options in place of each group, then --json. A command with --node gets
    the shared options, too. An async command gets --node as its last option, and a client of that node as `client`.
    left_out: the fields of RequestOptions that the command does not get."""
    own = dict(inspect.signature(command, locals={"StreamClient": object}, eval_str=True).parameters)
    is_async = inspect.iscoroutinefunction(command)
    if is_async:
        del own["client"]
        own["node"] = _parameter("node", NodeOptions, NodeOptions())
    groups = {name: each.annotation for name, each in own.items() if is_group(each.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, each in own.items():
        parameters += options_of(groups[name]) if name in groups else [_parameter(name, each.annotation, each.default)]
    has_json = "as_json" in own
    if not has_json:
        parameters.append(_parameter("as_json", JsonOption, False))
    has_node = any(each.name == "node" for each in parameters)
    if has_node:
        parameters += options_of(RequestOptions, left_out)

    def run(given: dict[str, Any]) -> None:
        AS_JSON.set(given["as_json"] if has_json else given.pop("as_json"))
        if has_node:
            # The command itself gets only its own options; it finds the shared ones in `GIVEN`.
            options = take(RequestOptions, given)
            # Options that do not fit together are an error before the command begins.
            options.tls_options.make()
            GIVEN.set(options)
        given |= {name: take(group, given) for name, group in groups.items()}
        if is_async:
            from stream_node.cli.client import with_client

            node = given.pop("node")
            with_client(functools.partial(command, **given), node)
        else:
            command(**given)

    made = functools.wraps(command)(lambda **given: copy_context().run(run, given))
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    return made


def is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def options_of(group: Any, left_out: Collection[str] = ()) -> Iterator[inspect.Parameter]:
    """Yields the options of a group, also those of the groups in it, in their order. left_out: the fields to skip."""
    for name, annotation in get_type_hints(group, include_extras=True).items():
        if name in left_out:
            continue
        if is_group(annotation):
            yield from options_of(annotation)
        else:
            yield _parameter(name, annotation, group._field_defaults.get(name, inspect.Parameter.empty))


def take(group: type[GroupT], given: dict[str, Any]) -> GroupT:
    """Returns a group with the values of its options, which are removed from `given`."""
    values: dict[str, Any] = {}
    for name, annotation in get_type_hints(group).items():
        if is_group(annotation):
            values[name] = take(annotation, given)
        elif name in given:
            values[name] = given.pop(name)
    return group(**values)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Returns a parameter as typer reads it. The texts in a type are the metavar, if there are two, and the help. An
    unnamed switch gets its first name only, without the --no- of typer."""
    if get_origin(annotation) is Annotated:
        kind, *settings = get_args(annotation)
        option = copy(next((each for each in settings if isinstance(each, ParameterInfo)), typer.Option()))
        if texts := [each for each in settings if isinstance(each, str)]:
            option.metavar = texts[0] if len(texts) == 2 else None
            option.help = texts[-1]
        if ENV in settings:
            option.envvar = f"STREAM_NODE_{name.upper()}"
        # In an annotated option, typer stores the first name in the field `default`.
        if kind in (bool, bool | None) and isinstance(option, OptionInfo) and option.default is ...:
            option.default = f"--{name.replace('_', '-')}"
        annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


class CommandGroup(NamedTuple):
    """Commands below one name, such as `stream create`. commands: the path of each function (`load_command`).
    below: the name of the outer group, if any. left_out: the fields of RequestOptions that these commands do not use,
    so `with_options` leaves them out."""

    name: str
    text: str
    commands: dict[str, str]
    below: str = ""
    left_out: tuple[str, ...] = ()


def load_command(path: str) -> Command:
    """Returns the function with this path below `stream_node.cli`, and imports its module."""
    module, _, name = path.rpartition(".")
    command: Command = getattr(import_module(f"stream_node.cli.{module}"), name)
    return command


def load_help(path: str) -> Callable[[], None]:
    """Returns a function without parameters that has the docstring of the command at this path."""
    module, _, name = path.rpartition(".")

    def shown() -> None:
        pass

    shown.__doc__ = _docstrings_of(module)[name]
    return shown


@functools.cache
def _docstrings_of(module: str) -> dict[str, str | None]:
    """Returns the docstring of each function of a module, by name. They are taken from the byte code of the module: an
    import of the module would also import all that its commands use."""
    spec = find_spec(f"stream_node.cli.{module}")
    assert spec is not None
    loader: Any = spec.loader
    functions = [each for each in loader.get_code(spec.name).co_consts if isinstance(each, CodeType)]
    # Python -OO leaves out docstrings. Since 3.14, a function without one has no place for it among its constants.
    return {each.co_name: next(iter(each.co_consts), None) if sys.flags.optimize < 2 else None for each in functions}


def _of(module: str, names: str, begin: str = "") -> dict[str, str]:
    """Returns the paths of commands of one module. A function has the name of its command, unless it is a builtin.
    begin: the text before the name of each command in the name of its function."""
    functions = {"list": "list_all", "set": "set_to"}
    return {name: f"{module}.{begin}{functions.get(name, name)}" for name in names.split()}


COMMANDS: dict[str, str] = {
    "serve": "node.serve.serve",
    "push": "streams.push.push",
    **_of("streams.reading", "pull consume tail"),
    "top": "node.status.top",
    **_of("node.maintenance", "verify backup restore doctor"),
    "health": "node.health.health",
    "status": "node.status.status",
    "connections": "node.fleet.connections",
    "repair": "node.maintenance.repair",
    "demo": "node.bench.demo",
}
GROUPS = (
    CommandGroup(
        "stream",
        "Create, copy, list, truncate and delete streams, and set their retention.",
        _of("streams.stream_admin", "create")
        | _of("streams.stream_copy", "copy")
        | _of("streams.stream_admin", "list info delete truncate retention"),
    ),
    CommandGroup("index", "See and set the positions of consumers.", _of("streams.index_admin", "get set list")),
    CommandGroup(
        "mirror",
        "Follow streams of another node, and take their place if it is lost.",
        _of("node.fleet", "add status promote remove"),
    ),
    CommandGroup(
        "bench",
        "Measure the rates and latencies of a node. Without --node and without a context, the run starts a node of "
        "its own, with its data below the working directory, and removes it at the end. The test stream is "
        "deleted.",
        _of("node.bench", "push pull latency fanout"),
    ),
    CommandGroup(
        "export",
        "Export messages to a table, each message exactly once.",
        _of("exports.export", "run daemon history verify compact forget migrate files"),
        left_out=("timeout", "channel", "services"),
    ),
    CommandGroup(
        "pipeline",
        "Keep silver and gold tables of an export, made by PySpark.",
        _of("exports.pipeline", "run daemon"),
    ),
    CommandGroup(
        "config",
        "Check and show a node's settings, and where each comes from.",
        _of("node.settings", "check show", "config_"),
    ),
    CommandGroup(
        "context",
        "Names for nodes, so that you need not type addresses.",
        _of("node.settings", "add list use remove"),
    ),
    CommandGroup("cert", "Make certificates for trying TLS.", {"show": "rights.identity.show_certificate"}),
    CommandGroup(
        "create",
        "Make an authority, or a certificate that it signs.",
        _of("rights.identity", "ca server client", "create_"),
        below="cert",
    ),
    CommandGroup("rule", "Say who may do what on a node.", _of("rights.rule", "add list remove check")),
    CommandGroup(
        "token",
        "Make and revoke tokens, by which clients prove who they are.",
        _of("rights.rule", "create") | {"list": "rights.rule.list_tokens"} | _of("rights.rule", "revoke"),
    ),
    CommandGroup("identity", "Make and show identities for secure channels.", _of("rights.identity", "create show")),
    CommandGroup(
        "trust",
        "Say whose secure channels a node accepts. Without anybody: nobody's.",
        _of("rights.identity", "add list remove"),
    ),
    CommandGroup(
        "cardinal",
        "Send and read blocks as Cardinal Streams; inspect files of them; simulate a chain.",
        _of("chains.cardinal", "produce consume") | _of("chains.cardinal_files", "inspect simulate"),
    ),
    CommandGroup(
        "block",
        "Publish, subscribe to, fetch and generate blocks.",
        _of("chains.block", "publish subscribe get status generate"),
        left_out=("services",),
    ),
    CommandGroup(
        "backfill",
        "Show how missing blocks are fetched from other nodes, and start a search for them.",
        _of("chains.block_backfill", "status run sources"),
        below="block",
        left_out=("services",),
    ),
    CommandGroup(
        "cluster", "See the members of a cluster, and empty one of them.", _of("node.fleet", "status drain", "cluster_")
    ),
)
