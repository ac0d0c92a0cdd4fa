"""The identity of a table: the consumer under whose name the node saves the indexes of the export.

The exporter compares the saved indexes with the table, and so notices that the node was restored to an earlier state.
If two tables shared a consumer, as after a copy of a folder, the higher indexes of one table would hide such a restore
from the other. This module detects a shared consumer, and gives the table another.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from spark_export.exporter.errors import DataLost, ExportMismatch
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import Exported, PartitionEnd, Range
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.tables.layout import LEDGER, Layout

SUFFIX_CHARACTERS = 6


def make_consumer(folder_name: str, random_id: str) -> str:
    return f"export-{folder_name}-{random_id[:SUFFIX_CHARACTERS]}"


def check_positions(
    ends: Iterable[PartitionEnd],
    exported: Mapping[tuple[str, int], Exported],
    positions: Mapping[tuple[str, int], int],
    client_id: str,
) -> None:
    """Raises ExportMismatch if the node has a higher saved index than this table can have saved: then another program
    saves indexes under the same client id. The caller ensures that no run is unfinished."""
    for end in ends:
        place = end.stream, end.partition
        known = exported.get(place)
        if known is not None and known.made_us != end.made_us:
            continue
        own, saved = known.end_index if known is not None else 0, positions.get(place, 0)
        if saved > own:
            raise ExportMismatch(
                f"the consumer {client_id!r} has saved {saved} for {end.stream}/{end.partition}, and this table was "
                f"exported up to {own}: another table saves under the same name, or the folder was put back to an "
                "earlier state; `stream-node export adopt` gives the table a consumer of its own"
            )


def was_put_back(end: PartitionEnd, known: Exported | None, saved: Exported | None, position: int) -> bool:
    """Returns whether the node was put back to a state before the export of a partition.

    saved: the end of those exported messages whose end the node has certainly saved, or None.
    """
    if known is None or known.made_us != end.made_us:
        return False
    is_behind = saved is not None and saved.made_us == end.made_us and position < saved.end_index
    return is_behind or end.next_index < known.end_index


async def check_place(layout: Layout, ledger: Ledger) -> None:
    """Raises ExportMismatch if the folder is a copy of another export, else records its path in the ledger."""
    here, noted = str(layout.folder), await ledger.load_place()
    if noted == here:
        return
    if noted is not None and _is_same_export(Path(noted) / LEDGER, layout.ledger, ledger.identity.table_id):
        raise ExportMismatch(
            f"{layout.folder} is a copy of {noted}, and both would save under the consumer "
            f"{ledger.identity.client_id!r}: `stream-node export adopt {layout.folder}` makes a table of its own of it"
        )
    await ledger.record_place(here)


async def adopt(layout: Layout, ledger: Ledger, node: NodeSide, client_id: str | None) -> str:
    """Gives the table a client id of its own (None: a new one), and returns it. Can be repeated after a crash.

    Raises ExportMismatch if the node has higher saved indexes under this id than the table can have saved, DataLost if
    the node was put back to an earlier state, and ClientErrors.
    """
    name = client_id or make_consumer(layout.place.name, uuid.uuid4().hex)
    exported, ends = await ledger.load_exported(), node.list_ends(Selection())
    saved, former = await ledger.load_exported(only_saved=True), node.load_positions(ledger.identity.client_id)
    for end in ends:
        place = end.stream, end.partition
        if was_put_back(end, exported.get(place), saved.get(place), former.get(place, 0)):
            raise DataLost(
                f"{end.stream}/{end.partition} was exported up to {exported[place].end_index}, and the node ends at "
                f"{end.next_index} and keeps {former.get(place, 0)} as the position of "
                f"{ledger.identity.client_id!r}: the node was put back to an earlier state, which another consumer "
                "would hide. Export into a new folder; or, if somebody changed the position, `stream-node index set` "
                f"it to {exported[place].end_index}"
            )
    check_positions(ends, exported, node.load_positions(name), name)
    taken = []
    for end in ends:
        known = exported.get((end.stream, end.partition))
        if known is not None and known.made_us == end.made_us:
            start = known.end_index
            taken.append(Range(end.stream, end.partition, known.era, end.made_us, start, start, 0))
    # The indexes are saved before the ledger names the consumer. Without saved indexes, the next run would be refused.
    node.save_positions(name, taken)
    await ledger.record_adoption(name, str(layout.place))
    return name


def _is_same_export(other: Path, own: Path, table_id: str) -> bool:
    if not other.is_file() or other.samefile(own):
        return False
    try:
        with closing(sqlite3.connect(f"{other.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT table_id FROM export").fetchone()
    except sqlite3.Error:
        # An unreadable ledger is taken for another export. `check_positions` still detects a shared consumer.
        return False
    return found is not None and found[0] == table_id
