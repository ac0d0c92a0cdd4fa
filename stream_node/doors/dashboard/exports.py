"""The pages of exports: their runs and ranges, from the histories that exporters write into `export_folders`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio
from starlette.responses import Response

from ockam.identity.rules.rights import EVERY_NAME
from stream_client import StreamInfo
from stream_node.doors.dashboard.listing import ROWS, list_infos, permitted, show_rows, shown_rows
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.http.problems import Problem

RANGES_MAX = 1_000

T = TypeVar("T")


async def show_exports(page: DashboardPage) -> Response:
    # For each folder, its view with the last run, or the reason why its history cannot be read.
    rows: list[tuple[str, Any, str]] = []
    for folder in _folders(page):
        try:
            rows.append((folder, await _read(folder, lambda history: history.load_view(0, 1)), ""))
        except Problem as problem:
            rows.append((folder, None, problem.detail))
    return page.show("exports.html", rows=rows)


async def show_export(page: DashboardPage) -> Response:
    folder = _folder(page)
    first = page.count("runs", 0)
    view = await _read(folder, lambda history: history.load_view(first, ROWS))
    try:
        partitions, problem = await _read(folder, lambda history: history.load_partitions()), ""
    except Problem as found:
        # The page shows the runs even if the partitions cannot be read.
        partitions, problem = [], found.detail
    shown, infos = show_rows(page, partitions), {}
    async with page.client() as client:
        for name in {each.of.stream for each in shown.rows}:
            infos.update({(name, each.partition): each for each in await permitted(list_infos(client, name))})
    rows = [(each, _waiting(each, infos)) for each in shown.rows]
    return page.show(
        "export.html",
        folder=folder,
        view=view,
        partitions=msgspec.structs.replace(shown, rows=rows),
        problem=problem,
        runs=shown_rows(list(view.runs), first, view.run_count),
    )


async def show_run(page: DashboardPage) -> Response:
    folder, number = _folder(page), page.count("run", 0)
    found = await _read(folder, lambda history: history.load_run(number, RANGES_MAX + 1))
    if found is None:
        raise Problem(404, "no-such-run", f"the history of {folder} has no run {number}")
    run, ranges = found
    is_cut = len(ranges) > RANGES_MAX
    return page.show("export_run.html", folder=folder, run=run, ranges=ranges[:RANGES_MAX], is_cut=is_cut)


def _folders(page: DashboardPage) -> tuple[str, ...]:
    folders = page.call.parts.config.export_folders
    if not folders:
        raise Problem(404, "no-exports", "this node shows no exports (the setting export_folders)")
    # Exports have the names of all streams, and paths of this machine.
    page.need(OPERATOR, EVERY_NAME)
    return folders


def _folder(page: DashboardPage) -> str:
    """Returns the folder that the user asks for. Only the folders of the setting are ever opened."""
    wanted = page.get("folder")
    if wanted not in _folders(page):
        raise Problem(404, "no-such-export", f"the setting export_folders does not name {wanted[:200]!r}")
    return wanted


async def _read(folder: str, read: Callable[[Any], T]) -> T:
    # The one module of the exporter that a node loads, and only for these pages. It needs neither Spark nor pyarrow.
    from spark_export.exporter.history import FILE, ExportHistory
    from spark_export.tables.errors import ExportError

    def load() -> T:
        named = Path(folder)
        return read(ExportHistory(named if named.is_file() else named / FILE))

    try:
        return await trio.to_thread.run_sync(load, abandon_on_cancel=True)
    except (ExportError, OSError) as error:
        raise Problem(503, "history-not-read", str(error)) from error


def _waiting(exported: Any, infos: dict[tuple[str, int], StreamInfo]) -> int | None:
    """Returns how many messages the export lacks. None: the partition is gone, newer, or hidden from this user."""
    info = infos.get(exported.of.place)
    # A stream that was deleted and made again has another time of creation, and its indexes begin again.
    if info is None or info.created_us != exported.of.created_us:
        return None
    end: int = exported.end
    return max(0, info.next_index - max(end, info.first_index))
