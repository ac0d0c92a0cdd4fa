"""Formats the results of exports, verifications and upkeep, as JSON objects and as lines of text. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_export.exporter.run import ExportOutcome
    from spark_export.exporter.upkeep import Kept
    from spark_export.exporter.verify import VerificationResult


def outcome_row(outcome: ExportOutcome, address: str) -> dict[str, Any]:
    row = {"folder": address, "run": outcome.run_id, **asdict(outcome), "seconds": round(outcome.seconds, 6)}
    del row["run_id"]
    return row


def outcome_lines(outcome: ExportOutcome, table: str) -> Iterator[str]:
    if outcome.run_id is None:
        what = (
            "nothing else is new" if outcome.left_out else "nothing is exported" if outcome.rows_left else "nothing new"
        )
        yield f"{what} ({outcome.seconds:.2f} s)"
    else:
        sizes = f"{outcome.data_bytes / 1e6:,.1f} MB in {_counted(outcome.files, 'file')}"
        steps = "" if outcome.steps == 1 else f", the last of {outcome.steps:,} steps"
        yield (
            f"run {outcome.run_id}{steps}: {_counted(outcome.rows, 'row')} of "
            f"{_counted(outcome.partitions, 'partition')}, {sizes} of {outcome.file_bytes / 1e6:,.1f} MB "
            f"({outcome.seconds:.2f} s)"
        )
    if outcome.lost:
        yield f"{_counted(outcome.lost, 'message')} had been deleted by retention before they could be exported"
    if outcome.rows_left:
        left = f"{_counted(outcome.rows_left, 'row')}, about {outcome.data_bytes_left / 1e6:,.1f} MB"
        yield f"the time is over, and left for the next run are {left}"
    if outcome.run_id is not None:
        yield f"the table is {table}"


def verdict_row(verdict: VerificationResult) -> dict[str, Any]:
    return {"ok": verdict.sound, **asdict(verdict)}


def verdict_lines(verdict: VerificationResult) -> Iterator[str]:
    yield from verdict.problems
    yield from verdict.notes
    counts = ((verdict.runs, "run"), (verdict.rows, "row"), (verdict.files, "file"))
    judgement = "each row once" if verdict.sound else _counted(verdict.problem_count, "problem")
    said = f"; {_counted(verdict.removed, 'exported row')} removed by others" if verdict.removed else ""
    said += f"; {_counted(verdict.lost, 'message')} lost to retention before the export" if verdict.lost else ""
    if verdict.compared is not None:
        said += f"; {_counted(verdict.compared, 'row')} compared with the node"
    yield f"{', '.join(_counted(number, noun) for number, noun in counts)}: {judgement}{said}"


def kept_line(done: Kept) -> str:
    merged = "nothing to merge"
    if done.merged:
        merged = f"{_counted(done.merged, 'file')} merged; the table has {_counted(done.files_after, 'file')}"
    return f"{merged}; {done.expired:,} old files and versions removed"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
