"""A recorded process: the real command with smaller limits, so that checkpoints come soon, or a database filled alone.

python power_child.py command ARGUMENTS…          `stream-node ARGUMENTS…`
python power_child.py export FOLDER NODE STREAM       one run of the exporter, without Spark
python power_child.py fill DIR STREAM COUNT       append messages one by one; end in good order
python power_child.py fill-and-die DIR STREAM COUNT   end as by a kill: the write-ahead log stays
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stream_storage.contract import Append
from stream_storage.sqlite import checkpointer
from stream_storage.sqlite.database import Database

MESSAGE_BYTES = 3_000


def message(stream: str, index: int) -> bytes:
    """The messages that `fill` stores."""
    return f"{stream} {index} ".encode().ljust(MESSAGE_BYTES, b".")


def fill(directory: Path, name: str, count: int, *, die: bool) -> None:
    database = Database.open(directory)
    session = database.session()
    for index in range(count):
        session.begin()
        record = session.log.ensure_stream(name, 0, 1)
        session.log.append([Append(record.stream_id, record.next_index, 1, [message(name, index)])])
        session.commit()
        if index == count // 2:
            session.checkpoint("PASSIVE")
    if die:
        os._exit(0)
    session.close()
    database.close()


def export(folder: Path, node: str, stream: str) -> None:
    from spark_export.exporter.job import ExportSettings
    from spark_export.exporter.node_side import Selection
    from spark_export.exporter.run import Exporter

    with Exporter(ExportSettings(folder, node, selection=Selection((stream,)))) as exporter:
        exporter.run()


def main(verb: str, *arguments: str) -> None:
    if verb == "command":
        from stream_node.cli.app import main as command

        checkpointer.CHECKPOINT_BYTES = 192 * 1024
        checkpointer.CHECKPOINT_COMMITS = 40
        checkpointer.EXTENDED_BYTES = 512 * 1024
        checkpointer.WAL_PAGES_MAX = 128
        sys.argv = ["stream-node", *arguments]
        command()
    elif verb == "export":
        export(Path(arguments[0]), *arguments[1:])
    else:
        directory, name, count = arguments
        fill(Path(directory), name, int(count), die=verb == "fill-and-die")


if __name__ == "__main__":
    main(*sys.argv[1:])
