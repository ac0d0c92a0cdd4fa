"""Opens a commit store in a folder: `open_store`. A program that shares the database of a node makes its `CommitStore`
itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from block_manager.store import BlockStore


@contextmanager
def open_store(folder: str | os.PathLike[str], name: str = "commit") -> Iterator[BlockStore]:
    """Opens a commit store in a database of its own, and closes it at the end of the `with` statement.

    folder: the folder of the database; it is made if it does not exist. Only one process can have it open.
    name: the name of the store; one database can contain several.

    Raises StorageError, for example if another process has the database open, and BlockStoreError.
    """
    # A manager without a database needs none of these, and the table of the store is part of the schema from now on.
    from block_manager.commit_store import CommitStore
    from block_manager.transactions import SessionTransactions
    from stream_storage.sqlite.database import Database

    with (
        closing(Database.open(Path(folder))) as database,
        closing(SessionTransactions(database, on_fatal=database.distrust)) as transactions,
    ):
        yield CommitStore(transactions, name)
