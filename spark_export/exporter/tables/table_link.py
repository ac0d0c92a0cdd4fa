"""Reads and restores the symbolic link `FOLDER/messages` of a plain Parquet table.

The link leads to the folder of the generation (version of the whole table) that readers see. The ledger, the record of
all runs, also has the number of this generation, so that a lost link can be restored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import structlog

from ockam.files.durable_files import make_folder
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.model import RunFile
from spark_export.exporter.tables.layout import GENERATIONS, RUN_FOLDER_PREFIX, Layout, point_to

logger = structlog.get_logger(__name__)

NOT_A_LINK = (
    "{path} is a {kind} and not a link, as after a copy that follows links (`cp -rL`, `rsync -L`): rename it away, and "
    "the next `stream-node export run` makes the link anew"
)
LEDGER_PUT_BACK = "the ledger was put back to an earlier state; put the whole folder back, or export into another one"


def read_link(layout: Layout) -> int:
    """Returns the number of the generation to which the link leads. Raises ExportMismatch for any other file."""
    link = layout.table
    if not os.path.lexists(link):
        raise ExportMismatch(f"{link} is missing; the next `stream-node export run` makes it anew")
    if not link.is_symlink():
        raise ExportMismatch(NOT_A_LINK.format(path=link, kind="folder" if link.is_dir() else "file"))
    target = link.resolve()
    if target.parent != layout.generations.resolve() or not target.name.isdigit():
        raise ExportMismatch(
            f"{link} leads out of {layout.generations}; the next `stream-node export run` turns it back"
        )
    if not target.is_dir():
        raise ExportMismatch(f"{link} leads to {GENERATIONS}/{target.name}, which is missing")
    return int(target.name)


def settle_link(layout: Layout, current: int, unfinished: int | None, files: Sequence[RunFile], *, latest: int) -> None:
    """Makes the link lead to the current generation (version of the table), if it is missing or out of date.

    Raises ExportMismatch if one of `files` is missing, if another file or folder has the link's name, or if the ledger
    is older than the table.

    unfinished: the generation of an interrupted compaction or repair, or None. A link to it is not changed.
    latest: the highest number of a generation that the ledger knows, dropped ones included.
    """
    known = {current, unfinished}
    later = [number for number in layout.list_generations() if number > latest]
    if later:
        raise ExportMismatch(f"the table has generation {max(later)}, and the ledger does not know: {LEDGER_PUT_BACK}")
    try:
        if read_link(layout) in known:
            return
        reason = "it led to an older generation"
    except ExportMismatch as error:
        # A file or folder with the link's name belongs to the user and is never replaced.
        if os.path.lexists(layout.table) and not layout.table.is_symlink():
            raise
        reason = str(error)
    # Readers may only see a complete table: each file of the current generation must exist with its full size.
    folder = layout.generation(current)
    paths = [folder / f"{RUN_FOLDER_PREFIX}{file.run_id:06d}" / file.entry.path for file in files]
    lacking = [
        path
        for path, file in zip(paths, files, strict=True)
        if not path.is_file() or path.stat().st_size != file.entry.file_bytes
    ]
    if lacking:
        raise ExportMismatch(
            f"{layout.table} does not lead to the table, and {GENERATIONS}/{folder.name} lacks {len(lacking)} of "
            f"{len(files)} files of the ledger, {lacking[0].name} among them: put the folder back, or "
            "`stream-node export repair` takes the rows from the node again"
        )
    make_folder(folder)
    point_to(layout.table, folder)
    if files:
        logger.warning("link made anew", link=str(layout.table), generation=current, reason=reason)
