"""Removes files that do not belong to the table any more, or never did, without removing files of another exporter.

While this exporter lists files, another exporter can take over the table on a store, and publish files that are in the
list. Therefore each removal has three steps:

1. The table lists the files, and only then reads its log. So the list has no file that was published before that.
2. The ledger (the record of all runs) says whether this exporter still owns the table. If so, nobody else has written a
   file of the list.
3. Files of runs and generations that are later than all in this exporter's ledger are kept in any case, and so are
   the files that the ledger has in the table: after a rollback by another program, a repair lists these files again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.runs.waiting import to_its_end
from spark_export.exporter.tables.table import Table

_RUN: Final = re.compile(r"(?:^|/)run[=-](?P<number>\d+)[/-]")
_REWRITTEN: Final = re.compile(r"(?:^|/)rewritten-(?P<number>\d+)-")


@dataclass(frozen=True)
class Highest:
    """The highest run id and the highest generation (version of the table) that a ledger knows."""

    run_id: int
    generation: int

    def covers(self, name: str) -> bool:
        """Returns whether a file with this name can be of a run or rewrite that the ledger knows."""
        run, rewritten = _RUN.search(name), _REWRITTEN.search(name)
        if run is not None and int(run["number"]) > self.run_id:
            return False
        return rewritten is None or int(rewritten["number"]) <= self.generation


async def remove_leftovers(table: Table, ledger: Ledger) -> int:
    """Removes the unpublished files of ended runs from a store. Returns their number. Raises TakenOver.

    The caller ensures that no run is unfinished.
    """
    return await remove_own(table, ledger, await asyncio.to_thread(table.find_leftovers))


async def remove_own(table: Table, ledger: Ledger, names: Sequence[str]) -> int:
    """Removes the files `names`, except those of another exporter and those that the ledger still has. Returns their
    number."""
    if not names:
        return 0
    await ledger.check_owner()
    highest = Highest(*await ledger.load_highest())
    # The names of files contain a random part or the checksum, or the number of the run or generation.
    current = {
        file.entry.path.rpartition("/")[2] for file in await ledger.load_files(await ledger.current_generation())
    }
    own = [name for name in names if highest.covers(name) and name.rpartition("/")[2] not in current]
    return await to_its_end(asyncio.to_thread(table.remove, own))
