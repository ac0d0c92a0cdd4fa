"""The command under way, as a line for a shell.

The line has the values that were given on the command line; those of the environment and of contexts still apply.
changed: other values, by the names of the parameters; None leaves a parameter out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import typer


def command_again(ctx: typer.Context, **changed: Any) -> str:
    """The command under way, as a line for a shell.

    It has what was given on the command line; what the environment and the contexts say still holds. changed: other
    values by the parameters' names; None leaves a parameter out.
    """
    words = ctx.command_path.split()
    values: dict[str, Any] = {}
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            values[name] = ctx.params[name]
    values |= changed
    for parameter in ctx.command.params:
        words += _typed(parameter, values.get(parameter.name or ""))
    return shlex.join(words)


def _typed(parameter: Any, value: Any) -> Iterator[str]:
    """The words that give a parameter this value; no words for None and for an option that is off."""
    if value is None or value is False:
        return
    for each in value if isinstance(value, list | tuple) else (value,):
        if parameter.param_type_name == "argument":
            yield str(each)
        elif each is True:
            yield parameter.opts[0]
        else:
            yield from (parameter.opts[0], str(each))
