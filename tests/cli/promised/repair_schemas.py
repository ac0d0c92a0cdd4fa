"""What `repair --json` promises."""

from __future__ import annotations

from typing import Any

from tests.cli.promised.schemas import Strict


class Repaired(Strict, frozen=True):
    """how: of each damaged frame, its number and why it is known. kept: where the log as it was is kept."""

    data_dir: str
    needed: bool
    lossless: bool
    done: bool
    kept: str | None
    verdict: str
    frames: int
    bad: int
    commits: int
    how: list[tuple[int, str]]
    salvage: list[dict[str, Any]]
    problem: str | None
    others: list[str]


REPAIR_SCHEMAS: dict[str, type[Strict]] = {"repair": Repaired}
