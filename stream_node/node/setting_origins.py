"""Finds the value of each setting, and where it was set. The module `config` explains the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from ockam.files.parsing import parse_toml
from stream_node.node.config import ENVIRONMENT_PREFIX, Config
from stream_node.node.config_sources import flattened, load_config

Origin: TypeAlias = Literal["flag", "environment", "file", "default"]


class Setting(msgspec.Struct, frozen=True):
    """One setting with its value and its origin. where: the flag, the variable or the file; None for a default."""

    name: str
    value: Any
    origin: Origin
    where: str | None


def load_effective(
    flags: Mapping[str, Any], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Config, list[Setting]]:
    """Returns the settings as `load_config` does, and a list with their origins in the order of `Config`.
    Raises ConfigError."""
    config = load_config(flags, file=file, environment=environment)
    in_file = flattened(parse_toml(file.read_text(encoding="utf-8"))) if file is not None else {}
    settings = []
    for field in msgspec.structs.fields(Config):
        name = field.name
        variable = ENVIRONMENT_PREFIX + name.upper()
        origin: tuple[Origin, str | None] = ("default", None)
        if flags.get(name) is not None:
            origin = ("flag", "--" + name.replace("_", "-"))
        elif variable in environment:
            origin = ("environment", variable)
        elif name in in_file:
            origin = ("file", str(file))
        settings.append(Setting(name, getattr(config, name), *origin))
    return config, settings
