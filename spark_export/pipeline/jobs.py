"""Builds silver and gold tables from the folder EXPORT of an export, in the folder OUT.

    python -m spark_export.pipeline.jobs EXPORT OUT [--cardinal REGEX] [--start [CHAIN=]HASH] [--rebuild]

A run reads only the messages that were exported since the last run, and corrects rows of earlier runs after a reorg.
With `--rebuild`, a run reads all messages and builds all tables again, with the same rows. OUT/latest is a link to the
last complete version of all tables. The command starts neither Spark nor Java.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from spark_export.exporter.errors import ExportError
from spark_export.pipeline.increment import STEP_BYTES, Settings, run_pipeline
from spark_export.pipeline.topics import Topics
from spark_export.pipeline.versions import KEEP_S
from spark_export.store.place import parse_place


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0, or 1 after an error."""
    given = _parser().parse_args(arguments)
    try:
        topics = None if given.cardinal is None else Topics(given.cardinal)
        settings = Settings(
            topics=topics,
            starts=read_starts(given.start, topics),
            step_bytes=given.step_bytes,
            keep_s=given.keep_seconds,
        )
        export, out = _folder(given.export), _folder(given.out)
        report = run_pipeline(export, out, settings, rebuild=given.rebuild)
    except (ExportError, ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for note in report.notes:
        sys.stderr.write(f"warning: {note}\n")
    told = {
        "folder": str(report.folder),
        "rows": report.rows,
        "steps": report.steps,
        "rebuilt": report.rebuilt,
        "notes": report.notes,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_export.pipeline.jobs", description="Bring silver and gold tables up to date."
    )
    parser.add_argument("export", metavar="EXPORT", help="the folder of an export in plain Parquet files")
    parser.add_argument("out", metavar="OUT", help="the folder of the tables")
    parser.add_argument(
        "--cardinal",
        metavar="REGEX",
        help="streams whose whole name matches are topics of Cardinal Streams; the first group names the chain",
    )
    parser.add_argument(
        "--start",
        metavar="[CHAIN=]HASH",
        action="append",
        default=[],
        help="a block on the canonical chain, in hex; with CHAIN= if the expression has a group; once for each chain",
    )
    parser.add_argument("--rebuild", action="store_true", help="build all tables anew")
    parser.add_argument("--step-bytes", type=int, default=STEP_BYTES, help="memory for the rows of one step")
    parser.add_argument(
        "--keep-seconds", type=float, default=KEEP_S, help="how long replaced versions are kept for their readers"
    )
    return parser


def _folder(text: str) -> Path:
    """Returns the local folder at this address. Raises ValueError for an object store, and ExportError."""
    place = parse_place(text)
    if not place.is_local:
        raise ValueError(f"{text}: the pipeline reads and writes folders of a file system, and no object stores")
    return place.folder


def read_starts(given: list[str], topics: Topics | None) -> dict[str, bytes]:
    """Returns the start block of each chain from the values CHAIN=HASH, or HASH for one chain. Raises ValueError."""
    found: dict[str, bytes] = {}
    for text in given:
        if topics is None:
            raise ValueError(f"--start {text}: only --cardinal has chains; give it too")
        chain, equals, digits = text.rpartition("=")
        if topics.has_group != bool(equals):
            form = "CHAIN=HASH, since the expression names several chains" if topics.has_group else "HASH"
            raise ValueError(f"--start {text}: write it as {form}")
        chain = chain if equals else topics.pattern
        if chain in found:
            raise ValueError(f"--start {text}: the chain {chain} has a start block already")
        found[chain] = _hash(text, digits)
    return found


def _hash(text: str, digits: str) -> bytes:
    try:
        found = bytes.fromhex(digits.removeprefix("0x"))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ValueError(f"--start {text}: the hash of a block has 64 hex digits")
    return found


if __name__ == "__main__":
    sys.exit(main())
