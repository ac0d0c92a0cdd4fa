"""Group commit: many operations in one transaction, in order. If one fails, the others are still committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from stream_storage.contract import Operation, Session
from stream_storage.errors import CommitInDoubt, CommitUnsettled, PartFailed, StorageError
from stream_storage.failpoint import failpoint


def commit_batch(session: Session, operations: Sequence[Operation]) -> StorageError | None:
    """Does all operations, in order, in one transaction. Afterwards each is on disk, or has an `error` and has stored
    nothing, unless the error is in doubt. Returns None, or a fatal error, after which nothing more may be written."""
    pending = operations
    while pending:
        failpoint("before_begin")
        # 1. The usual way: everything together, without a savepoint for each operation.
        error = _tried(session, partial(session.begin, deferred=True))
        error = error or _tried(session, partial(_apply_groups, session, pending))
        one_is_bad = error is not None and not error.fatal and (len(pending) > 1 or isinstance(error, PartFailed))
        # 2. The commit returns after the sync, so nothing may be confirmed before. A session that sent the operations
        #    together with the commit learns only now that one of them is bad.
        if error is None:
            error = _commit(session)
            one_is_bad = isinstance(error, PartFailed)
        # 3. Some operation is bad. Find the bad operations, and commit the others.
        if one_is_bad:
            error = _tried(session, session.rollback) or _tried(session, session.begin)
            error = error or _apply_each(session, pending) or _commit(session)
        # Operations without an error of their own are stored; those with one have stored nothing.
        if error is None:
            failpoint("after_commit_before_confirm")
            return None
        # 4. The connection to the server was lost: do everything again on a new one.
        if session.recover(error):
            for operation in pending:
                operation.error = None
            continue
        # 5. The transaction is undone or in doubt. Operations in doubt are perhaps stored, so they are not repeated.
        #    Each pass of the loop has fewer operations than the last pass, so the loop ends.
        fatal = error.failure if isinstance(error, CommitInDoubt) else error
        failed = _tried(session, session.rollback)
        if failed is not None:
            # The session cannot be used any more.
            failed.fatal = True
        failed = failed or (fatal if fatal.fatal else None)
        left = [operation for operation in pending if operation.error is None]
        if failed is not None or error.in_doubt or len(left) == len(pending):
            fail_all(left, error)
            return failed
        pending = left
    return None


def _commit(session: Session) -> StorageError | None:
    failpoint("after_rows_before_commit")
    error = _tried(session, session.commit)
    if error is None:
        return None
    # A commit that raised can be stored all the same: a broken connection may have lost only the answer. The session
    # finds out; reporting a failure without asking would make producers send twice.
    stored = session.settle(error)
    if isinstance(stored, StorageError):
        in_doubt = CommitInDoubt(stored) if stored.fatal else CommitUnsettled(stored)
        in_doubt.__cause__ = error
        return in_doubt
    return None if stored else error


def apply_read(session: Session, operation: Operation) -> None:
    """Applies one read operation. All its statements see the same state of the database."""
    error = _tried(session, partial(_read, session, operation))
    while error is not None and session.recover(error):
        error = _tried(session, partial(_read, session, operation))
    operation.error = error


def _read(session: Session, operation: Operation) -> None:
    session.begin()
    try:
        operation.apply(session)
    finally:
        session.rollback()


def fail_all(operations: Sequence[Operation], error: StorageError) -> None:
    for operation in operations:
        if operation.error is None:
            operation.error = error


def _apply_groups(session: Session, operations: Sequence[Operation]) -> None:
    for kind, group in groupby(operations, lambda operation: type(operation)):
        kind.apply_group(list(group), session)


def _apply_each(session: Session, operations: Sequence[Operation]) -> StorageError | None:
    """Applies each operation in a savepoint of its own. Returns an error only if the whole transaction is lost."""
    for operation in operations:
        lost = _tried(session, session.savepoint)
        if lost is not None:
            return lost
        # An earlier attempt may have left an error, which this one replaces.
        operation.error = _tried(session, partial(operation.apply, session))
        if operation.error is None:
            lost = _tried(session, session.release)
        # Without a transaction there is no savepoint to go back to: the database has undone everything.
        elif operation.error.fatal or not session.in_transaction:
            lost = operation.error
        else:
            lost = _tried(session, session.rollback_to)
        if lost is not None:
            return lost
    return None


def _tried(session: Session, step: Callable[[], None]) -> StorageError | None:
    try:
        step()
    except Exception as raised:
        return session.error_of(raised)
    return None
