"""Makes `docs/log-events.md`: every event that a node logs, with its level and fields, what it means, and what to do.

The events are found in the calls of loggers, and `tools/log_events.toml` says what each means. The sources are parsed
and not imported.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.style.tree import ROOT, package_files, parse
from tools.reference_errors import _cell

LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"} | {
    "critical": "critical"
}
"""The level of each method of a logger."""
OTHERS = frozenset({"spark_export", "pyspark_stream_node", "stream_client", "cardinal_streams", "bare"})
"""The packages that are not part of a node."""
WHO = ("identity", "peer")


class Call(NamedTuple):
    """Call: one place that logs an event. fields: the names of its fields."""

    event: str
    level: str
    fields: tuple[str, ...]


def all_calls(root: Path = ROOT) -> Iterator[Call]:
    """All calls of loggers in the packages of a node. Raises SystemExit for a call that does not name its event."""
    for path in package_files(root):
        if path.relative_to(root).parts[0] in OTHERS:
            continue
        tree = parse(path)
        chosen = _chosen(tree)
        for node in ast.walk(tree):
            match node:
                # The publish machine performs no I/O: it lists its log lines.
                case ast.Call(
                    func=ast.Name(id="LogLine"),
                    args=[ast.Constant(value=str(event)), ast.Dict(keys=keys)],
                    keywords=more,
                ):
                    yield Call(
                        event, "warning" if more else "info", tuple(ast.literal_eval(each) for each in keys if each)
                    )
            if not isinstance(node, ast.Call):
                continue
            levels, argument = _logged(node, chosen)
            # `PublishService` writes the lines that were listed, see above.
            if argument is None or ast.unparse(argument) == "effect.event":
                continue
            events = list(_events(argument, tree))
            if not events:
                raise SystemExit(f"reference: {path}:{node.lineno} logs an event whose name is not written there")
            fields = _fields(node, tree)
            yield from (Call(event, LEVELS[level], fields) for event in events for level in levels)


def _chosen(tree: ast.Module) -> dict[str, list[str]]:
    """The levels of each name that stands for one of two methods: `log = logger.info if … else logger.warning`."""
    return {
        each.targets[0].id: levels
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and isinstance(each.value, ast.IfExp)
        and (levels := _levels(each.value, {}))
    }


def _levels(function: ast.expr, chosen: dict[str, list[str]]) -> list[str]:
    """The methods of a logger that an expression can be; none if it is another function."""
    if isinstance(function, ast.IfExp):
        return [*_levels(function.body, chosen), *_levels(function.orelse, chosen)]
    if isinstance(function, ast.Name):
        return chosen.get(function.id, [])
    is_logger = (
        isinstance(function, ast.Attribute)
        and function.attr in LEVELS
        and ast.unparse(function.value).endswith(("logger", "_log", "get_logger(__name__)"))
    )
    return [function.attr] if is_logger and isinstance(function, ast.Attribute) else []


def _logged(node: ast.Call, chosen: dict[str, list[str]]) -> tuple[list[str], ast.expr | None]:
    """The levels and the event of a call: `logger.info("event")`, or `lines.log(logger.info, "event")`."""
    levels = _levels(node.func, chosen)
    if levels and node.args:
        return levels, node.args[0]
    if isinstance(node.func, ast.Attribute) and node.func.attr == "log" and len(node.args) > 1:
        levels = _levels(node.args[0], chosen)
        return levels, node.args[1] if levels else None
    return [], None


def _events(argument: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The texts that an argument can have. If it is a parameter of a function, the texts in the function's calls."""
    if isinstance(argument, ast.Name):
        for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
            names = [each.arg for each in function.args.args if each.arg != "self"]
            if argument.id in names:
                for call in ast.walk(tree):
                    if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == function.name:
                        yield from _events(call.args[names.index(argument.id)], ast.Module([], []))
    elif isinstance(argument, ast.IfExp):
        yield from (*_events(argument.body, tree), *_events(argument.orelse, tree))
    elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value


def _fields(node: ast.Call, tree: ast.Module) -> tuple[str, ...]:
    found = _bound(node, tree)
    for each in node.keywords:
        if each.arg is not None:
            found += [] if each.arg == "exc_info" else [each.arg]
        elif ast.unparse(each.value).endswith("who"):
            found += WHO
        else:
            found += _spread(each.value, node, tree)
    return tuple(dict.fromkeys(found))


def _bound(node: ast.Call, tree: ast.Module) -> list[str]:
    """The fields of all lines of a class whose property `_log` binds them."""
    if "_log." not in ast.unparse(node.func):
        return []
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "_log")
    calls = (each for function in functions for each in ast.walk(function) if isinstance(each, ast.Call))
    return [
        keyword.arg
        for call in calls
        if getattr(call.func, "attr", "") == "bind"
        for keyword in call.keywords
        if keyword.arg is not None
    ]


def _spread(value: ast.expr, node: ast.Call, tree: ast.Module) -> list[str]:
    """The fields in `**known` and `**self._known()`: the keys of the dict in the same or the called function."""
    dicts: list[ast.expr | None] = []
    for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
        within = list(ast.walk(function))
        if isinstance(value, ast.Call) and function.name == getattr(value.func, "attr", ""):
            dicts += [each.value for each in within if isinstance(each, ast.Return)]
        elif isinstance(value, ast.Name) and node in within:
            dicts += [
                each.value
                for each in within
                if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == value.id
            ]
    found: list[str] = []
    for each in dicts:
        for key, inner in zip(each.keys, each.values, strict=True) if isinstance(each, ast.Dict) else ():
            found += [ast.literal_eval(key)] if key is not None else WHO if ast.unparse(inner).endswith("who") else []
    return found


def meanings(root: Path = ROOT) -> dict[str, str]:
    """What each event means, and what to do."""
    texts: dict[str, str] = tomllib.loads((root / "tools/log_events.toml").read_text(encoding="utf-8"))
    return texts


def events_page() -> str:
    """The generated part of `docs/log-events.md`."""
    calls, told = list(all_calls()), meanings()
    names = {call.event for call in calls}
    problems = [f"{name} is logged, and is not in tools/log_events.toml" for name in sorted(names - told.keys())]
    problems += [f"{name} is in tools/log_events.toml, and nobody logs it" for name in sorted(told.keys() - names)]
    if problems:
        raise SystemExit("\n".join(f"reference: {each}" for each in problems))
    rows = []
    for name in sorted(names):
        same = [call for call in calls if call.event == name]
        levels = " or ".join(sorted({call.level for call in same}))
        fields = dict.fromkeys(field for call in same for field in call.fields)
        cells = (f"`{name}`", levels, ", ".join(f"`{field}`" for field in fields), _cell(told[name]))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["| Event | Level | Fields | Meaning, and what to do |", "|---|---|---|---|", *rows]) + "\n"
