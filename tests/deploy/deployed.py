"""What the tests of `deploy/` share: its files, and what the program accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stream_node.doors.http.endpoints import ENDPOINTS
from stream_node.node.config import Config
from stream_node.node.config_sources import check_start, load_config
from tests.cli.command import whole_command
from tests.style.tree import ROOT

DEPLOY = ROOT / "deploy"
CONTAINERFILE = DEPLOY / "container/Containerfile"


def read_yaml(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def read_documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def instructions() -> list[tuple[str, str]]:
    """The instructions of the container file with their arguments, each on one line, without comments."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line]


def last_stage() -> dict[str, str]:
    """The instructions of the image itself, by name; the last one of each."""
    every = instructions()
    begin = max(place for place, (name, _) in enumerate(every) if name == "FROM")
    return dict(every[begin:])


def image_environment() -> dict[str, str]:
    """The variables that the image sets for the node."""
    return dict(re.findall(r"(STREAM_NODE_\w+)=(\S+)", last_stage()["ENV"]))


def accept(arguments: Sequence[str]) -> Mapping[str, Any]:
    """The values of a command line of `stream-node`. Raises click's UsageError if it is not accepted."""
    command = whole_command()
    name, *rest = arguments
    parsed: Mapping[str, Any] = command.commands[name].make_context(name, rest).params  # type: ignore[attr-defined]
    return parsed


def settings_of(environment: Mapping[str, str], file: Path | None = None) -> Config:
    """The settings of a node with these variables, which would start with them. Raises ConfigError."""
    config = load_config({}, file=file, environment=environment)
    check_start(config)
    return config


def open_paths() -> set[str]:
    """The paths that a node answers over HTTP without any right."""
    return {each.path for each in ENDPOINTS if each.is_open}


def is_short_image(name: str) -> bool:
    """Whether the name of an image names no host: what stands before the first slash has no dot and no port."""
    host, slash, _ = name.partition("/")
    return not slash or not re.search(r"[.:]", host)


def exec_form(text: str) -> list[str]:
    """A command in the form of a JSON list, which needs no shell."""
    command: list[str] = json.loads(text)
    return command
