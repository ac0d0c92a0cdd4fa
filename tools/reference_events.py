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
    """All calls of loggers in the packages of a node. Raises SystemExit if the event of one is not written there."""
    for path in package_files(root):
        if path.relative_to(root).parts[0] in OTHERS:
            continue
        tree = parse(path)
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
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            level, argument = _logged(node, node.func)
            if argument is None:
                continue
            events = list(_events(argument, tree))
            if not events:
                raise SystemExit(f"reference: {path}:{node.lineno} logs an event whose name is not written there")
            yield from (Call(event, LEVELS[level], _fields(node)) for event in events)


def _logged(node: ast.Call, function: ast.Attribute) -> tuple[str, ast.expr | None]:
    """The level and the event of a call: `logger.info("event")`, or `lines.log(logger.info, "event")`."""
    if (
        function.attr in LEVELS
        and node.args
        and ast.unparse(function.value).endswith(("logger", "_log", "get_logger(__name__)"))
    ):
        return function.attr, node.args[0]
    if function.attr == "log" and len(node.args) > 1 and isinstance(node.args[0], ast.Attribute):
        return node.args[0].attr, node.args[1]
    return "", None


def _events(argument: ast.expr, tree: ast.Module) -> Iterator[str]:
    """The texts that the first argument can have. The parameter `event` of a method has those of its calls."""
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


def _fields(node: ast.Call) -> tuple[str, ...]:
    found: list[str] = []
    for each in node.keywords:
        if each.arg is not None:
            found += [] if each.arg == "exc_info" else [each.arg]
        elif ast.unparse(each.value).endswith("who"):
            found += WHO
    return tuple(found)


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
