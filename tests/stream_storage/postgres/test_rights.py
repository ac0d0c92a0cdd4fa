"""Goal: a node that may not do what it needs, or may not come in, says so at once and by name.

Method: a real server with a role of its own for the node, whose rights psql gives and takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import trio
from structlog.testing import capture_logs

from stream_node.care.doctor import examine_server
from stream_node.node.config import Config
from stream_node.node.databases import check_url
from stream_storage.commit import commit_batch
from stream_storage.contract import Append
from stream_storage.errors import MemberFenced, RightsMissing, ServerRefused
from stream_storage.postgres.database import PostgresDatabase
from tests.support.postgres import PostgresServer
from tests.support.served import PATIENCE_S, served

FOR_EVER_S = 3_600.0
"""A test that waits for so long ends as one that hangs."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> str:
    """A database of its own for each test."""
    return server.new_database()


def open_refused(url: str) -> list[str]:
    """The rights that the role lacks, as the node says them."""
    with pytest.raises(RightsMissing) as refused:
        PostgresDatabase.open(url)
    assert "docs/scale.md" in str(refused.value)
    return list(refused.value.rights)


async def test_a_node_needs_no_more_than_the_documented_rights_and_names_those_that_it_lacks(
    server: PostgresServer, database: str, tmp_path: Path
) -> None:
    """The owner makes the tables. The role of the node gets the rights of docs/scale.md and nothing else."""
    server.ask("CREATE ROLE limited LOGIN")
    url = server.url_of(database).replace("someone@", "limited@")
    assert open_refused(url) == ["CREATE on the schema, for schema_version"]
    PostgresDatabase.open(server.url_of(database)).close()
    assert "SELECT, INSERT, UPDATE, DELETE on messages" in open_refused(url)
    server.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO limited", database)
    server.ask("REVOKE DELETE ON block_index FROM limited", database)
    server.ask("REVOKE SELECT, UPDATE ON schema_version FROM limited", database)
    assert open_refused(url) == ["DELETE on block_index", "SELECT, UPDATE on schema_version"]
    server.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO limited", database)
    with capture_logs() as logs, trio.fail_after(PATIENCE_S):
        async with served(tmp_path, database=url, block_node=True, retention_messages=2) as running:
            peer = await running.peer()
            (route,) = [route for _, route in await peer.create_partitions("s", 1)]
            assert [confirm.index for confirm in await peer.push_all(route, [b"a", b"b", b"c"])] == [0, 1, 2]
            await peer.save_index("c", "s", 3)
            assert await peer.get_index("c", "s") == 3
    assert not [line for line in logs if line["log_level"] in ("error", "critical")]
    assert server.ask("SELECT count(*) FROM messages", database) == "3"


@pytest.mark.parametrize(
    ("ask", "role", "database", "words"),
    [
        (None, "nobody", "postgres", 'role "nobody" does not exist'),
        (None, "someone", "nothing", 'database "nothing" does not exist'),
        ("CREATE ROLE group_only NOLOGIN", "group_only", "postgres", "is not permitted to log in"),
        (
            "CREATE DATABASE closed ALLOW_CONNECTIONS false",
            "someone",
            "closed",
            "is not currently accepting connections",
        ),
    ],
)
def test_who_is_not_let_in_is_told_at_once(
    server: PostgresServer, ask: str | None, role: str, database: str, words: str
) -> None:
    if ask is not None:
        server.ask(ask)
    url = server.url_of(database).replace("someone@", f"{role}@")
    with pytest.raises(ServerRefused, match=words):
        PostgresDatabase.open(url, wait_s=FOR_EVER_S)
    finding = examine_server(url, Config())
    assert finding.status == "wrong"
    assert words in finding.text


def test_an_empty_password_in_the_url_is_none(server: PostgresServer, database: str) -> None:
    url_without = server.url_of(database)
    for url in (url_without.replace("someone@", "someone:@"), f"{url_without}?password="):
        check_url(url)
        PostgresDatabase.open(url).close()


def test_a_fenced_member_is_told_to_start_again(server: PostgresServer, database: str) -> None:
    """A member of a cluster that was silent: another one has taken its shards, and its database is the right one."""
    fenced, other = (PostgresDatabase.open(server.url_of(database), member=name) for name in "ab")
    session, fencing = fenced.session(), other.session()
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    fencing.begin()
    assert fencing.fence(fenced.owner)
    fencing.commit()
    late = Append(stream_id, 0, 7, [b"late"])
    failure = commit_batch(session, [late])
    assert isinstance(failure, MemberFenced)
    assert "start it again" in str(late.error)
    assert "another database" not in str(late.error)
    # So is one that finds out when it connects again.
    server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert isinstance(commit_batch(session, [Append(stream_id, 0, 7, [b"later"])]), MemberFenced)
    for each in (session, fencing):
        each.close()
    fenced.close()
    other.close()
