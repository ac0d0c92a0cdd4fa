"""Turns functions into commands for typer: adds the shared options, and writes groups of options out.

A group is a NamedTuple of options. A command has one parameter for it, in whose place `with_options` writes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextvars import copy_context
from copy import copy
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from stream_node.cli.client import with_client
from stream_node.cli.options import ENV, NodeOptions
from stream_node.cli.output import AS_JSON
from stream_node.cli.request_options import GIVEN, RequestOptions

Command: TypeAlias = Callable[..., Any]
Prepare: TypeAlias = Callable[[Command], Callable[..., None]]
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
            node = given.pop("node")
            with_client(functools.partial(command, **given), node)
        else:
            command(**given)

    made = functools.wraps(command)(lambda **given: copy_context().run(run, given))
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    return made


def _leaving_out(*fields: str) -> Prepare:
    return functools.partial(with_options, left_out=fields)


with_block_options = _leaving_out("services")
with_tls_options = _leaving_out("timeout", "channel", "services")
"""For commands that speak only the protocols of blocks, and for those that need only TLS and a token."""


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
