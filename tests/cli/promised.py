"""The types of the reports that commands print with --json, made from `promised.toml`."""

from __future__ import annotations

import keyword
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec

FILE = Path(__file__).with_name("promised.toml")
FIELD = re.compile(r"(?P<name>\w+)(?P<optional>\??): (?P<type>.+)", re.DOTALL)
BETWEEN = re.compile(r",\s+(?=\w+\??: )")
"""What stands between two fields: a comma before a name with a colon."""


def _read() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the types by name, and the type of the report of each command."""
    read = tomllib.loads(FILE.read_text())
    fields: dict[str, list[str]] = {}
    types: dict[str, Any] = {"Any": Any, "Literal": Literal}
    for name, text in read["types"].items():
        first, *others = BETWEEN.split(text.strip())
        fields[name] = [*(fields[first[3:]] if first.startswith("...") else [first]), *others]
        types[name] = _made(name, fields[name], types)
    return types, {command: eval(text, types) for command, text in read["reports"].items()}


def _made(name: str, fields: list[str], types: dict[str, Any]) -> Any:
    """Returns a type with these fields. A field that is missing, unknown or of another type is an error."""
    made: list[Any] = []
    renamed: dict[str, str] = {}
    for each in fields:
        match = FIELD.fullmatch(each)
        assert match is not None, f"{name}: {each} is no field"
        field, found = match["name"], eval(match["type"].replace("\n", " "), types)
        if keyword.iskeyword(field):
            renamed[f"{field}_"] = field
            field = f"{field}_"
        made.append((field, found | msgspec.UnsetType, msgspec.UNSET) if match["optional"] else (field, found))
    # Fields that can be missing come last, whatever their place in the text.
    made.sort(key=len)
    return msgspec.defstruct(name, made, frozen=True, forbid_unknown_fields=True, rename=renamed)


_TYPES, REPORTS = _read()
promised: Any = SimpleNamespace(**_TYPES)
"""Each type by its name, such as `promised.StreamCreated`."""
