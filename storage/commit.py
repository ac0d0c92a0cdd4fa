"""Group commit: many operations in one transaction, none failing because of another. No threads, no delivery.

The order of a batch is the order of its operations, in the log and in the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from storage.contract import Operation, Session
from storage.disk_diagnosis import judge
from storage.errors import CommitInDoubt, StorageError, storage_error
from storage.failpoint import failpoint


def commit_batch(session: Session, operations: Sequence[Operation]) -> StorageError | None:
    """Do all of them and commit; afterwards each is on disk, or has its `error` and left nothing (but see step 3).

    1. Begin, and apply runs of operations of one class together.
    2. If that raises, undo it, begin again, and apply each alone, in a part that can be undone alone: only the bad
       ones fail.
    3. Commit, which returns after the sync. Where the disk fails in this step, the operations are CommitInDoubt:
       neither stored nor not stored, as far as anybody can tell before the next start.
    4. If the transaction was lost to one of them (a full disk undoes all of it), repeat without those that failed. If
       it was lost to none of them, all fail.

    Returns the fatal error, if there was one: then nothing more may be written in this session.
    """
    pending = operations
    while pending:
        failpoint("before_begin")
        error = _tried(session, session.begin) or _tried(session, partial(_apply_groups, session, pending))
        if error is not None and not error.fatal and len(pending) > 1:
            error = _tried(session, session.rollback) or _tried(session, session.begin) or _apply_each(session, pending)
        if error is None:
            failpoint("after_rows_before_commit")
            error = _tried(session, session.commit)
            if error is not None and error.fatal:
                # The log may have the whole transaction, although it could not be synced.
                error = _in_doubt(error)
        if error is None:
            failpoint("after_commit_before_confirm")
            return None
        fatal = error.failure if isinstance(error, CommitInDoubt) else error
        failed = _tried_rollback(session) or (fatal if fatal.fatal else None)
        left = [operation for operation in pending if operation.error is None]
        if failed is not None or len(left) == len(pending):
            fail_all(left, error)
            return failed
        pending = left
    return None


def apply_read(session: Session, operation: Operation) -> None:
    """Do one operation that reads; all its statements see the same state."""
    try:
        session.begin()
        try:
            operation.apply(session)
        finally:
            session.rollback()
    except Exception as raised:
        operation.error = _mapped(raised)


def fail_all(operations: Sequence[Operation], error: StorageError) -> None:
    """Give the error to those that have none."""
    for operation in operations:
        if operation.error is None:
            operation.error = error


def _apply_groups(session: Session, operations: Sequence[Operation]) -> None:
    for kind, group in groupby(operations, lambda operation: type(operation)):
        kind.apply_group(list(group), session)


def _apply_each(session: Session, operations: Sequence[Operation]) -> StorageError | None:
    """Each in a part of its own. Returns an error where the transaction itself is lost, and all with it."""
    for operation in operations:
        lost = _tried(session, session.savepoint)
        if lost is not None:
            return lost
        operation.error = _tried(session, partial(operation.apply, session))
        if operation.error is None:
            lost = _tried(session, session.release)
        elif operation.error.fatal or not session.in_transaction:
            lost = operation.error
        else:
            lost = _tried(session, session.rollback_to)
        if lost is not None:
            return lost
    return None


def _tried_rollback(session: Session) -> StorageError | None:
    """Undo what is left of the transaction. An error here leaves the session unusable, so it is fatal."""
    error = _tried(session, session.rollback)
    if error is not None:
        error.fatal = True
    return error


def _in_doubt(failure: StorageError) -> CommitInDoubt:
    error = CommitInDoubt(failure)
    error.__cause__ = failure
    return error


def _tried(session: Session, step: Callable[[], None]) -> StorageError | None:
    """The error of ours that a step ended with, or None."""
    try:
        step()
    except Exception as raised:
        return judge(_mapped(raised), session)
    return None


def _mapped(raised: Exception) -> StorageError:
    """The error of ours, with what it stands for as its cause."""
    error = storage_error(raised)
    if error is not raised:
        error.__cause__ = raised
    return error
