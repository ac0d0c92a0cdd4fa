"""Finding: the result of one check of `stream-node doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from stream_node.fleet.worker_directory import check_not_lost, database_folders, worker_of
from stream_node.node.config import Config, ConfigError

Status: TypeAlias = Literal["ok", "warning", "wrong"]
Values: TypeAlias = dict[str, int | float | str | None]


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. text: the observed fact and, unless the status is "ok", advice. values: for programs."""

    check: str
    status: Status
    text: str
    values: Values = {}


def check_workers(config: Config) -> tuple[Finding | None, dict[str, Path]]:
    """Reports how many workers share the streams; None if there is one process. Also returns the folder of each
    database by the name of its worker; the name is "" if there is one process."""
    directory = Path(config.data_dir)
    single = {"": directory}
    if config.database is not None:
        return None, single
    try:
        folders = database_folders(directory)
        check_not_lost(folders)
    except ConfigError as error:
        return Finding("workers", "wrong", str(error), {"workers": None}), single
    # The one database of a directory may still belong to one of several workers.
    if folders == single:
        whose = worker_of(directory)
        if whose is None:
            return None, single
        text = f"this is {whose}; no node serves it alone, but the directory that holds the folders of all workers"
        return Finding("workers", "warning", text, {"workers": whose.workers}), single
    text = f"{len(folders)}, each with a database of its own, in {', '.join(folders)}"
    return Finding("workers", "ok", text, {"workers": len(folders)}), folders


def named(name: str, finding: Finding) -> Finding:
    """Returns a finding about one worker with its name in front. The name "" stands for the whole node."""
    return msgspec.structs.replace(finding, check=f"{name} {finding.check}") if name else finding


def of_each(folders: Mapping[str, Path], check: Callable[[Path], Finding]) -> list[Finding]:
    return [named(name, check(folder)) for name, folder in folders.items()]
