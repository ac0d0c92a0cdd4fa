"""Groups of options that several commands share.

A group is a NamedTuple whose fields are options. A command has one parameter for the whole group; typer reads the
options of a command from its signature, so `with_groups` writes the options of the group in the place of the parameter.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextvars import copy_context
from copy import copy
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from stream_node.cli.output import AS_JSON

Command: TypeAlias = Callable[..., None]
Prepare: TypeAlias = Callable[[Command], Command]
GroupT = TypeVar("GroupT")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def with_groups(command: Command) -> Command:
    """Returns the command in the form that typer needs: with the options in place of each group, and with --json, which
    `say` obeys, as the last option."""
    own = inspect.signature(command, eval_str=True).parameters
    groups = {name: each.annotation for name, each in own.items() if is_group(each.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, each in own.items():
        parameters += options_of(groups[name]) if name in groups else [each]
    has_json = "as_json" in own
    if not has_json:
        parameters.append(_parameter("as_json", JsonOption, False))
    parameters = [each.replace(annotation=_switch(each.name, each.annotation)) for each in parameters]

    def run(given: dict[str, Any]) -> None:
        AS_JSON.set(given["as_json"] if has_json else given.pop("as_json"))
        made = {name: take(group, given) for name, group in groups.items()}
        command(**given, **made)

    return typed(command, parameters, lambda **given: copy_context().run(run, given))


def typed(command: Command, parameters: list[inspect.Parameter], run: Command) -> Command:
    """Returns `run` with the name and the help text of a command, and with these parameters, for typer."""
    made = functools.wraps(command)(run)
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
    """Returns a group with the values of its options, which are removed from `given`. Options that are not given have
    their defaults."""
    values: dict[str, Any] = {}
    for name, annotation in get_type_hints(group).items():
        if is_group(annotation):
            values[name] = take(annotation, given)
        elif name in given:
            values[name] = given.pop(name)
    return group(**values)


def _switch(name: str, annotation: Any) -> Any:
    """Returns the type of a parameter. typer gives an unnamed switch two names, such as --share and --no-share. Here a
    switch gets the first name only, unless its option names both."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, option, *_ = get_args(annotation)
    # In an annotated option, typer stores the first name in the field `default`.
    if kind not in (bool, bool | None) or not isinstance(option, OptionInfo) or option.default is not ...:
        return annotation
    named = copy(option)
    named.default = f"--{name.replace('_', '-')}"
    return Annotated[kind, named]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
