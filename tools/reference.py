"""Writes the pages of the reference from the program itself: typer's commands, `Config`, the metrics, the errors and
the protocols.

Each page has a part that people write, up to the line `MARK`, and a part that this tool writes, below it.

    python tools/reference.py            writes all pages
    python tools/reference.py --check    exit 1 where a page is stale
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from stream_node.cli.app import build  # noqa: E402
from stream_node.cli.commands import options_of  # noqa: E402
from stream_node.cli.node.serve import ServeOptions  # noqa: E402
from stream_node.cli.options import NodeOptions, RequestOptions  # noqa: E402
from stream_node.cli.values import SECONDS, parse_duration, parse_size  # noqa: E402
from stream_node.node import config  # noqa: E402
from stream_node.node.config import ENVIRONMENT_PREFIX, Config  # noqa: E402
from stream_node.node.live_settings import FILES_READ_AGAIN, WHILE_RUNNING  # noqa: E402
from tools.reference_errors import errors_page  # noqa: E402
from tools.reference_events import events_page  # noqa: E402
from tools.reference_metrics import metrics_page  # noqa: E402
from tools.reference_protocols import protocols_page  # noqa: E402
from tools.reference_python import python_page  # noqa: E402
from tools.reference_site import llms_text  # noqa: E402

MARK = "<!-- Made by `python tools/reference.py`; change the program, not the lines below. -->"

SHARED: dict[str, Any] = {
    each.name: each.annotation
    for each in (*options_of(NodeOptions), *options_of(RequestOptions, {"token_file", "channel"}))
}
"""The options of commands that talk to a node. They are explained once, above the commands."""

EXAMPLE = re.compile(r"([^:]+): ((?:[^:`]*\| )?(?:[A-Z_]+=\S+ )?stream-node .*)")
"""Matches a paragraph of a help text that is an example: a title, and the command."""

GROUP = re.compile(r'\s*# Group "(?P<name>.*)": (?P<text>.*)')
IN_WORDS = {"data_dir": "`stream-node` in the user's data directory"}
"""Defaults that differ from machine to machine."""

COUNTED = re.compile(r"(?<=_)(?P<noun>messages|blocks|sessions|items)(_max)?$")
"""Matches the end of a setting's name that says what the setting counts."""


class Group(NamedTuple):
    """Group: settings that belong together. texts: the explanation of each setting, by name."""

    name: str
    text: str
    texts: dict[str, str]


class Command(NamedTuple):
    """Command: one command of `stream-node` as typer knows it. name: with its group, as in "stream list"."""

    name: str
    typed: Any

    @property
    def paragraphs(self) -> list[str]:
        """The help text, one string for each paragraph."""
        return [" ".join(each.split()) for each in inspect.cleandoc(self.typed.help).split("\n\n")]

    @property
    def summary(self) -> str:
        """The first sentence of the help text."""
        return re.split(r"(?<=\.) ", self.paragraphs[0])[0]


def settings_groups() -> list[Group]:
    """The groups of settings with their texts, read from the source of `Config`."""
    source = inspect.getsource(config)
    lines = source.splitlines()
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Config")
    groups: list[Group] = []
    begin = found.lineno
    for setting, text in zip(found.body, found.body[1:], strict=False):
        if not isinstance(setting, ast.AnnAssign):
            continue
        headings = [match for line in lines[begin : setting.lineno] if (match := GROUP.match(line))]
        groups += [Group(match["name"], match["text"], {}) for match in headings]
        if not isinstance(setting.target, ast.Name) or not isinstance(text, ast.Expr):
            raise SystemExit(f"reference: {ast.unparse(setting)} has no text below it")
        groups[-1].texts[setting.target.id] = " ".join(ast.literal_eval(text.value).split())
        begin = setting.lineno
    return groups


def settings_page() -> str:
    """The generated part of `docs/settings.md`."""
    fields = {field.name: field for field in msgspec.structs.fields(Config)}
    parts = []
    for group in settings_groups():
        rows = [_setting_row(fields[name], text) for name, text in group.texts.items()]
        head = ["| Setting | Default | Unit | Meaning | Changes | Environment |", "|---|---|---|---|---|---|"]
        parts.append("\n".join([f"## {group.name}", "", _sentence(group.text), "", *head, *rows]))
    return "\n\n".join(parts) + "\n"


def _setting_row(field: msgspec.structs.FieldInfo, text: str) -> str:
    flag = f" Flag: `--{field.name.replace('_', '-')}`." if field.name in ServeOptions._fields else ""
    default = IN_WORDS.get(field.name) or default_in_words(field)
    variable = f"{ENVIRONMENT_PREFIX}{field.name.upper()}"
    changes = changes_when(field.name)
    return f"| `{field.name}` | {default} | {unit_of(field)} | {text}{flag} | {changes} | `{variable}` |"


def changes_when(name: str) -> str:
    """When a changed value in the file takes effect."""
    if name in WHILE_RUNNING:
        return "while running"
    return "at a start; the file while running" if name in FILES_READ_AGAIN else "at a start"


def unit_of(field: msgspec.structs.FieldInfo) -> str:
    """In which unit a setting is given, or of what kind it is."""
    if re.search(r"(_s|_s_max|_secs)$", field.name):
        return "seconds"
    if re.search(r"(_bytes|_bytes_max|_bytes_min|_bytes_per_second|_buffer_size)$", field.name):
        return "bytes"
    if field.name.endswith("_per_second"):
        return "number"
    counted = COUNTED.search(field.name)
    if counted:
        return counted["noun"]
    return {bool: "true or false", int: "number", tuple: "list"}.get(type(field.default), "text")


def default_in_words(field: msgspec.structs.FieldInfo) -> str:
    """A default as one would type it: "7d" rather than 604800.0, "64MiB" rather than 67108864."""
    value: Any = field.default
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(value)}`"
    unit = unit_of(field)
    if unit == "seconds" and value:
        divisor = max((size, name) for name, size in SECONDS.items() if value % size == 0)
        text = f"{value / divisor[0]:g}{divisor[1]}"
        assert parse_duration(text) == value
        return f"`{text}`"
    if unit == "bytes" and value:
        scale = max(
            (2**power, name) for power, name in ((10, "KiB"), (20, "MiB"), (30, "GiB")) if value % 2**power == 0
        )
        text = f"{value // scale[0]}{scale[1]}"
        assert parse_size(text) == value
        return f"`{text}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def commands_page() -> str:
    """The generated part of `docs/commands.md`."""
    commands = all_commands()
    overview = ["| Command | What it does |", "|---|---|"]
    overview += [f"| [`{each.name}`](#{each.name.replace(' ', '-')}) | {each.summary} |" for each in commands]
    parts = ["## All commands", "\n".join(overview), "## To reach a node", _shared_text()]
    parts += [_command_text(each) for each in commands]
    return "\n\n".join(parts) + "\n"


def all_commands() -> list[Command]:
    """Every command of `stream-node`, in the order of its help."""
    return list(_commands(typer.main.get_command(build())))


def _commands(typed: Any, *above: str) -> Iterator[Command]:
    for name, each in typed.commands.items():
        if hasattr(each, "commands"):
            yield from _commands(each, *above, name)
        else:
            yield Command(" ".join((*above, name)), each)


def _shared_text() -> str:
    """The table of the options that all commands that talk to a node take."""
    app = typer.Typer(add_completion=False)

    def ask(**_: object) -> None: ...

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=None, annotation=SHARED[name]) for name in SHARED]
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = SHARED
    app.command()(ask)
    command = Command("ask", typer.main.get_command(app))
    intro = "Commands whose usage ends in `[NODE OPTIONS]` talk to a node and take these options:"
    return f"{intro}\n\n" + "\n".join(_table("Option", _records(command, "option", {"help"})))


def _command_text(command: Command) -> str:
    arguments = _records(command, "argument", set())
    names = {each.name for each in command.typed.params}
    own = _records(command, "option", {*SHARED, "help", "as_json"} if "node" in names else {"help", "as_json"})
    words = [f"stream-node {command.name}", *(left.split(" ")[0] for left, _ in arguments)]
    words += ["[OPTIONS]"] * bool(own) + ["[NODE OPTIONS]"] * ("node" in names)
    parts = [f"### {command.name}", "```text\n" + " ".join(words) + "\n```"]
    examples = [match for each in command.paragraphs if (match := EXAMPLE.fullmatch(each))]
    parts += [each for each in command.paragraphs if not EXAMPLE.fullmatch(each)]
    lines = [
        f"# {title}\n{line}" if title != "Example" else line for title, line in (each.groups() for each in examples)
    ]
    parts.append("```sh\n" + "\n".join(lines) + "\n```")
    if arguments:
        parts.append("\n".join(_table("Argument", arguments)))
    if own:
        parts.append("\n".join(_table("Option", own)))
    return "\n\n".join(parts)


def _records(command: Command, kind: str, left_out: set[str]) -> list[tuple[str, str]]:
    """The arguments or options of a command: how each is written, and what it means."""
    context = typer.Context(command.typed)
    found = []
    for each in command.typed.params:
        record = each.get_help_record(context)
        if each.param_type_name == kind and each.name not in left_out and record is not None:
            found.append((record[0], " ".join(record[1].split())))
    return found


def _table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    cells = [(left.replace("|", "\\|"), right.replace("|", "\\|")) for left, right in rows]
    return [f"| {title} | Meaning |", "|---|---|", *(f"| `{left}` | {right} |" for left, right in cells)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


PAGES = {
    "docs/commands.md": commands_page,
    "docs/settings.md": settings_page,
    "docs/metrics.md": metrics_page,
    "docs/errors.md": errors_page,
    "docs/log-events.md": events_page,
    "docs/protocols.md": protocols_page,
    "docs/python.md": python_page,
    # The last one, since it reads the others.
    "docs/llms.txt": llms_text,
}


def stale_pages(*, write: bool = False) -> list[str]:
    """Returns the pages whose generated part is stale. write: whether to write them anew."""
    stale = []
    for name, make in PAGES.items():
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        written, mark, _ = text.partition(MARK)
        if not mark:
            raise SystemExit(f"reference: {name} lacks the line {MARK}")
        made = f"{written}{MARK}\n\n{make()}"
        if made != text:
            stale.append(name)
            if write:
                page.write_text(made, encoding="utf-8")
    return stale


if __name__ == "__main__":
    checks = "--check" in sys.argv[1:]
    found = stale_pages(write=not checks)
    for name in found:
        sys.stderr.write(f"reference: {name} {'is stale: run python tools/reference.py' if checks else 'is written'}\n")
    sys.exit(1 if checks and found else 0)
