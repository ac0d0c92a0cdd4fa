"""Formats the results of runs, verifications and compactions, as JSON objects and as lines of text. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_export.exporter.model import Run
from spark_export.exporter.repair import Repair
from spark_export.exporter.runs.run import ExportOutcome
from spark_export.exporter.tables.compact import Compaction
from spark_export.exporter.verify import VerificationResult
from spark_export.store.place import StoreLocation


def outcome_row(outcome: ExportOutcome, folder: Path | StoreLocation) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "run": outcome.run_id,
        "rows": outcome.rows,
        "data_bytes": outcome.data_bytes,
        "file_bytes": outcome.file_bytes,
        "files": outcome.files,
        "partitions": outcome.partitions,
        "lost": outcome.lost,
        "recovered": list(outcome.recovered),
        "swept": outcome.swept,
        "steps": outcome.steps,
        "left_out": [{"stream": each.stream, "reason": each.reason} for each in outcome.left_out],
        "rows_left": outcome.rows_left,
        "data_bytes_left": outcome.data_bytes_left,
        "engine": outcome.engine,
        "seconds": round(outcome.seconds, 6),
    }


def outcome_lines(outcome: ExportOutcome, folder: Path | StoreLocation) -> Iterator[str]:
    yield from outcome.recovered
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
        yield f"the engine was {outcome.engine}"
    if outcome.lost:
        yield f"{_counted(outcome.lost, 'message')} had been deleted by retention before they could be exported"
    if outcome.rows_left:
        left = f"{_counted(outcome.rows_left, 'row')}, about {outcome.data_bytes_left / 1e6:,.1f} MB"
        yield f"the time is over, and left for the next run are {left}"
    if outcome.run_id is not None:
        where = folder if isinstance(folder, StoreLocation) else folder / "messages"
        yield f"the table is {where}"


def run_row(run: Run) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "state": run.state,
        "started_us": run.started_us,
        "finished_us": run.finished_us,
        "rows": run.rows,
        "data_bytes": run.data_bytes,
        "file_bytes": run.file_bytes,
        "files": run.files,
        "lost": run.lost,
        "error": run.error,
    }


def verdict_row(verdict: VerificationResult) -> dict[str, Any]:
    return {
        "ok": verdict.sound,
        "runs": verdict.runs,
        "partitions": verdict.partitions,
        "rows": verdict.rows,
        "files": verdict.files,
        "file_bytes": verdict.file_bytes,
        "lost": verdict.lost,
        "given_up": verdict.given_up,
        "problems": list(verdict.problems),
        "problem_count": verdict.problem_count,
    }


def verdict_lines(verdict: VerificationResult) -> Iterator[str]:
    yield from verdict.problems
    counts = ((verdict.runs, "run"), (verdict.rows, "row"), (verdict.files, "file"))
    judgement = "every index once" if verdict.sound else _counted(verdict.problem_count, "problem")
    early = verdict.lost - verdict.given_up
    lost = f"; {_counted(early, 'message')} lost to retention before the export" if early else ""
    lost += f"; {_counted(verdict.given_up, 'exported row')} lost, which a repair gave up" if verdict.given_up else ""
    yield f"{', '.join(_counted(number, noun) for number, noun in counts)}: {judgement}{lost}"


def compaction_row(done: Compaction) -> dict[str, Any]:
    return {
        "generation": done.generation,
        "files_before": done.files_before,
        "files_after": done.files_after,
        "merged": done.merged,
        "rows": done.rows,
        "expired": done.expired,
    }


def compaction_line(done: Compaction) -> str:
    if done.generation is None:
        return "nothing to merge"
    return f"{_counted(done.files_before, 'file')} became {done.files_after:,}; {_counted(done.rows, 'row')} as before"


def repair_row(done: Repair) -> dict[str, Any]:
    return {
        "damaged": list(done.damaged),
        "rows": done.rows,
        "lost": done.lost,
        "losses": [asdict(each) for each in done.losses],
        "generation": done.generation,
    }


def repair_lines(done: Repair) -> Iterator[str]:
    yield from done.damaged
    if done.generation is None:
        yield "every file is as it was written, and the table lists it"
    if done.damaged:
        files = _counted(len(done.damaged), "damaged or missing file")
        yield f"{files} taken out; {_counted(done.rows, 'row')} of them read again from the node"
    for each in done.losses:
        era = f" (made anew {each.era} times)" if each.era else ""
        yield f"lost: {each.stream}/{each.partition}{era} from {each.start_index} to {each.end_index - 1}"
    if done.losses:
        yield f"{_counted(done.lost, 'row')} lost for good, as the ledger notes"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
