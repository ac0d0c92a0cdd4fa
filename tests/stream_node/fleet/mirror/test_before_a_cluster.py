"""Goal: a database in which a stream is a mirror, or has a former source to fence, becomes no member's, whatever its
node does for the stream. Method: a row of the table of mirrors with each role, written without a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_node.node.config import ConfigError
from stream_node.node.services import check_no_mirrors
from stream_service.mirror_rows import MirrorRow, write_mirror
from stream_service.role_machine import STORED, StreamRole
from stream_storage.sqlite.database import Database


@pytest.mark.parametrize("role", sorted(STORED))
def test_a_stream_with_any_task_of_a_mirror_keeps_its_node_out_of_a_cluster(tmp_path: Path, role: StreamRole) -> None:
    database = Database.open(tmp_path)
    session = database.session()
    session.begin()
    stream = session.log.ensure_stream("orders", 0, 1)
    session.commit()
    check_no_mirrors(database)
    session.begin()
    write_mirror(session, MirrorRow(stream.stream_id, role, "127.0.0.1:1", "orders"))
    session.commit()
    with pytest.raises(ConfigError, match="'orders'; start this node alone") as caught:
        check_no_mirrors(database)
    # What it offers is possible: a stream that only fences is promoted already.
    assert "mirror remove NAME" in str(caught.value)
    assert ("mirror promote NAME" in str(caught.value)) == (role is not StreamRole.FENCING)
    session.close()
    database.close()
