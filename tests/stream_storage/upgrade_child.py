"""A child process that opens a data directory with the revisions of the tests, and is killed at a site meanwhile.

python upgrade_child.py DIR HEAD   open and close; HEAD is the newest schema version of `tests.stream_storage.revisions`
python upgrade_child.py DIR HEAD hold   open, print a line, and wait for the end of stdin before closing
"""

from __future__ import annotations

import sys
from pathlib import Path

import structlog

from stream_storage.errors import StorageError
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.migrate import Migrations


def main(directory: str, head: str, verb: str = "") -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        database = Database.open(Path(directory), migrations=Migrations("tests.stream_storage.revisions", int(head)))
    except StorageError as error:
        print(type(error).__name__, error, flush=True)
        sys.exit(1)
    print("open", flush=True)
    if verb == "hold":
        sys.stdin.read()
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
