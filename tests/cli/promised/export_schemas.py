"""What `--json` promises of the export commands, as `schemas` for the others."""

from __future__ import annotations

from tests.cli.promised.schemas import Strict


class StreamLeftOut(Strict, frozen=True):
    stream: str
    reason: str


class Exported(Strict, frozen=True):
    folder: str
    run: int | None
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    partitions: int
    lost: int
    recovered: list[str]
    swept: int
    steps: int
    left_out: list[StreamLeftOut]
    rows_left: int
    data_bytes_left: int
    engine: str
    seconds: float


class RunRow(Strict, frozen=True):
    run: int
    state: str
    started_us: int
    finished_us: int | None
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    lost: int
    error: str | None


class ExportVerified(Strict, frozen=True):
    ok: bool
    runs: int
    partitions: int
    rows: int
    files: int
    file_bytes: int
    lost: int
    given_up: int
    problems: list[str]
    problem_count: int


class Compacted(Strict, frozen=True):
    generation: int | None
    files_before: int
    files_after: int
    merged: int
    rows: int
    expired: int


class RowsLost(Strict, frozen=True):
    stream: str
    era: int
    partition: int
    start_index: int
    end_index: int


class Repaired(Strict, frozen=True):
    damaged: list[str]
    rows: int
    lost: int
    losses: list[RowsLost]
    generation: int | None


class Adopted(Strict, frozen=True):
    folder: str
    client: str


class FileRow(Strict, frozen=True):
    path: str
    run: int | None = None
    stream: str | None = None
    era: int | None = None
    date: str | None = None
    rows: int | None = None
    data_bytes: int | None = None
    file_bytes: int | None = None
    sha256: str | None = None


EXPORT_SCHEMAS: dict[str, type[Strict]] = {
    "export run": Exported,
    "export daemon": Exported,
    "export history": RunRow,
    "export verify": ExportVerified,
    "export compact": Compacted,
    "export repair": Repaired,
    "export adopt": Adopted,
    "export files": FileRow,
}
"""tests/spark_export/exporter reads with them what the commands say."""
