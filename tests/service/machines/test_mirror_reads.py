"""Goal: a mirror never gets messages of one history with another history, whenever a read of them ends.

Method: a whole worker without a node, whose stream loses its last messages and gets others while a read is under way.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from ockam.actors.message import Message
from ockam.actors.worker import Context
from stream_service.mirror_operations import AnyChange
from stream_service.mirroring import MIRROR, MirrorPull, MirrorStatus, decode_mirror_page
from stream_service.stored import StoredStream
from stream_service.workers.stream import StreamWorker
from stream_storage.contract import Append, Session
from stream_storage.history import History, HistoryEntry, set_history
from tests.service.machines.test_stream_any_order import CLIENT, STREAM, Around

OLD, NEW = HistoryEntry(7, 0), HistoryEntry(8, 10)


def store(session: Session, change: AnyChange, data: bytes, end: int, history: History) -> None:
    begin = session.log.get_stream(change.stream_id).next_index
    session.log.append((Append(change.stream_id, begin, 1, [data] * (end - begin)),))
    set_history(session, change.stream_id, history)


def cut(session: Session, change: AnyChange) -> None:
    session.log.cut_from(change.stream_id, NEW.first_index)


@pytest.mark.parametrize("reads", ["before the cut", "before the worker knows the new messages"])
def test_a_mirror_gets_no_messages_of_another_history(reads: str) -> None:
    around = Around()
    around.session.begin()
    record = around.session.log.ensure_stream("s", 0, 0)
    around.session.commit()
    worker = StreamWorker("s", 0, StoredStream(record, 0, None), cast(Any, around), lambda identity: None)
    worker.context = cast(Context, around)
    worker.started()

    def change(work: Any) -> None:
        assert worker.change(work, lambda operation: None)

    change(partial(store, data=b"old", end=20, history=(OLD,)))
    around.end_write(fails=False)
    # A mirror that has five messages asks for the others.
    request = MIRROR.encode_request(MirrorPull(1, 5, 1 << 20, 0, OLD.entry_id, None))
    worker.receive([Message((STREAM,), (CLIENT,), request)])
    (read,) = around.reads
    if reads == "before the cut":
        read.apply(around.session)
    change(cut)
    around.end_write(fails=False)
    change(partial(store, data=b"new", end=30, history=(OLD, NEW)))
    write = around.writes.popleft()
    around.session.begin()
    write.apply(around.session)
    around.session.commit()
    if reads == "before the cut":
        write.on_done(write)
    else:
        read.apply(around.session)
    read.on_done(read)
    page = decode_mirror_page(around.answers[-1].payload)
    assert page.status is MirrorStatus.OK
    found = {index: data for index, data, *_ in page.records}
    of_page = b"new" if NEW in page.history else b"old"
    assert all(data == (b"old" if index < NEW.first_index else of_page) for index, data in found.items())
    assert page.next_index == (30 if NEW in page.history else 10)
    around.database.close()
