"""Goal: SIGHUP changes exactly those settings of a running node that the settings page says, and a wrong file none.

Method: a real node process whose file is edited; and a server inside the test, each of whose parts is asked afterwards.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from structlog.testing import capture_logs

from block_node.grpc.http2.limits import Http2Limits
from block_node.persist.store import BlockRetention
from ockam.transport.connection_machine import ConnectionLimits
from stream_node.fleet.worker_place import WorkerPlace, own_settings
from stream_node.node.config import Config
from stream_node.node.live_settings import FILES_READ_AGAIN, WHILE_RUNNING
from stream_node.node.parts import NodeParts
from stream_node.node.process import NodeProcess
from stream_node.node.server import Server
from stream_service.extensions import Retention
from tests.ockam.identity.channel.samples import identity
from tests.support.served import served, wait_until
from tests.support.stream_peer import stream_peer


def log_lines(node: NodeProcess, event: str) -> list[Any]:
    lines = [json.loads(line) for line in node.log_file.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


async def reload(node: NodeProcess, event: str) -> Any:
    """Send SIGHUP, and return the next log line of this event."""
    before = len(log_lines(node, event))
    node.signal(signal.SIGHUP)
    await wait_until(lambda: len(log_lines(node, event)) > before)
    return log_lines(node, event)[before]


async def test_an_edited_file_changes_a_running_node(tmp_path: Path) -> None:
    """Goal: a limit changes for open connections, a flag stays, and a wrong file changes nothing. Method: a stream that
    the first limit refuses and the second allows; then a file with one mistake and one right value."""
    file = tmp_path / "node.toml"
    file.write_text("streams_max = 1\nlog_level = 'info'\n")
    arguments = ("--config", str(file), "--log-level", "info")
    with NodeProcess(tmp_path / "data", arguments=arguments) as node:
        async with stream_peer(node.address) as peer:
            assert await peer.create("first")
            file.write_text("streams_max = 2\nlog_level = 'error'\n[backfill]\ngreedy = true\n")
            line = await reload(node, "settings_loaded")
            assert line["changed"] == ["streams_max: 1 -> 2"]
            assert line["at_next_start"] == ["backfill_greedy: False -> True"]
            assert await peer.create("second")
            file.write_text("streams_max = 'many'\nretention_messages = 1\n")
            wrong = await reload(node, "settings_not_taken")
            assert (wrong["level"], wrong["file"]) == ("error", str(file))
            assert wrong["reason"].startswith(f"streams_max in {file} line 1: ")
            file.write_text("streams_max = 2\n")
            # What was wrong was not taken: nothing has to be taken back.
            assert (await reload(node, "settings_loaded"))["changed"] == []
        assert node.stop() == 0


async def test_texts_that_no_system_takes_are_mistakes_like_others(tmp_path: Path) -> None:
    """Goal: a text that raises an error of another kind below the settings ends no node. Method: the character NUL in
    the names of files, and ports that `int` refuses, are read by a running node; then a file without them."""
    file = tmp_path / "node.toml"
    file.write_text("streams_max = 1\n")
    with NodeProcess(tmp_path / "data", arguments=("--config", str(file))) as node:
        for text, said in (
            ('access_rules = "a\\u0000b"', "access_rules in "),
            ('forward_tokens = ["h:1=a\\u0000b"]', "forward_tokens in "),
            ('allow_forward = ["host:²"]', "allow_forward in "),
            (f"allow_forward = ['host:{'1' * 5_000}']", "allow_forward in "),
        ):
            file.write_text(f"{text}\n", encoding="utf-8")
            assert (await reload(node, "settings_not_taken"))["reason"].startswith(said)
        file.write_text("streams_max = 2\n")
        assert (await reload(node, "settings_loaded"))["changed"] == ["streams_max: 1 -> 2"]
        assert node.stop() == 0


async def test_the_log_names_changes_and_what_waits_for_a_start(tmp_path: Path) -> None:
    """Goal: an operator sees in one line what is different now. Method: four changes, twice; then the first file."""
    file = tmp_path / "node.toml"
    file.write_text("retention_messages = 5\n")
    with NodeProcess(tmp_path / "data", arguments=("--config", str(file))) as node:
        file.write_text("retention_age_s = '1d'\nlog_level = 'warning'\nlease_ttl_s = '20s'\nallow_forward = ['a:1']\n")
        line = await reload(node, "settings_loaded")
        assert (line["level"], line["file"]) == ("info", str(file))
        assert line["changed"] == [
            "allow_forward: none -> a:1",
            "retention_age_s: none -> 86400",
            "retention_messages: 5 -> none",
            "log_level: info -> warning",
        ]
        assert line["at_next_start"] == ["lease_ttl_s: 10.0 -> 20.0"]
        file.write_text(file.read_text().replace("warning", "info"))
        line = await reload(node, "settings_loaded")
        # What waits for a start is named again, since it still waits.
        assert (line["changed"], len(line["at_next_start"])) == (["log_level: warning -> info"], 1)
        file.write_text("retention_messages = 5\n")
        line = await reload(node, "settings_loaded")
        assert (len(line["changed"]), line["at_next_start"]) == (3, [])
        assert node.stop() == 0


def _parts(server: Server) -> Any:
    return server._parts


def _usages(server: Server) -> Any:
    return _parts(server).node.usages


def _directory(server: Server) -> Any:
    return _parts(server).services.directory


def _limits(server: Server) -> ConnectionLimits:
    limits: ConnectionLimits = _parts(server).tcp._limits
    return limits


def _grpc_limits(server: Server) -> Http2Limits:
    """The limits of a gRPC connection that begins now."""
    assert server._grpc is not None
    return server._grpc._limits


def _http(server: Server) -> Config:
    """The settings that HTTP and the metrics ask at each request and each connection."""
    assert server._http is not None
    return server._http.parts.config


def _default_retention(server: Server) -> Retention:
    retention: Retention = _directory(server).default_retention
    return retention


def _block_retention(server: Server) -> BlockRetention:
    retention: BlockRetention = _parts(server).services._blocks._blocks.store.retention
    return retention


TRUSTED = str(identity("initiator"))
LIVE: dict[str, tuple[Any, Callable[[Server], Any], Any]] = {
    "allow_forward": (("a:1",), lambda server: _parts(server).tcp._allow_forward, frozenset({b"a:1"})),
    "idle_timeout_s": (77.0, lambda server: _limits(server).idle_s, 77.0),
    "frame_timeout_s": (78.0, lambda server: _limits(server).frame_s, 78.0),
    "send_timeout_s": (79.0, lambda server: (_limits(server).send_s, _grpc_limits(server).send_s_max), (79.0, 79.0)),
    "drain_timeout_s": (7.0, lambda server: server.config.drain_timeout_s, 7.0),
    "connections_max": (71, lambda server: _parts(server).tcp._connections_max, 71),
    "peer_memory_bytes_max": (2**21, lambda server: _parts(server).tcp.statistics().memory.bytes_max, 2**21),
    "free_disk_bytes_min": (2**60, lambda server: server.config.free_disk_bytes_min, 2**60),
    "http_hosts": (("a.test",), lambda server: _http(server).http_hosts, ("a.test",)),
    "http_origins": (("https://a.test",), lambda server: _http(server).http_origins, ("https://a.test",)),
    "http_connections_max": (75, lambda server: _http(server).http_connections_max, 75),
    "http_body_bytes_max": (76, lambda server: _http(server).http_body_bytes_max, 76),
    "http_body_timeout_s": (80.0, lambda server: _http(server).http_body_timeout_s, 80.0),
    "metrics_names_max": (86, lambda server: _http(server).metrics_names_max, 86),
    "consumer_stuck_after": (("x=never",), lambda server: _http(server).consumer_stuck_after, ("x=never",)),
    "export_folders": (("lake",), lambda server: _http(server).export_folders, ("lake",)),
    "log_level": ("error", lambda server: server.config.log_level, "error"),
    "streams_max": (72, lambda server: _directory(server).limits.streams_max, 72),
    "partitions_max": (73, lambda server: _directory(server).limits.partitions_max, 73),
    "pull_bytes_max": (74, lambda server: _directory(server).limits.pull_bytes_max, 74),
    "identity_limits_loopback": (
        True,
        lambda server: _usages(server).limits_of("anonymous:127.0.0.1").channels_max is not None,
        True,
    ),
    "secure_channel_trusted": ((TRUSTED,), lambda server: _parts(server).channels.trust.is_closed, False),
    "retention_age_s": (81, lambda server: _default_retention(server).age_s, 81),
    "retention_messages": (82, lambda server: _default_retention(server).messages, 82),
    "retention_bytes": (83, lambda server: _default_retention(server).size_bytes, 83),
    "block_retention_blocks": (84, lambda server: _block_retention(server).blocks, 84),
    "block_retention_bytes": (85, lambda server: _block_retention(server).size_bytes, 85),
}
"""For each setting that changes while the node runs: a value, how to ask the part that obeys it, and its answer."""


async def test_every_live_setting_reaches_the_part_that_obeys_it(tmp_path: Path) -> None:
    """Goal: no setting says "while running" and is ignored. Method: change all, one after the other; ask each part, and
    that it did not say so before."""
    limits = {name for name in WHILE_RUNNING if name.startswith("identity_") and name != "identity_limits_loopback"}
    assert set(LIVE) | limits == WHILE_RUNNING
    assert set(Config.__struct_fields__) >= WHILE_RUNNING | FILES_READ_AGAIN
    assert not WHILE_RUNNING & FILES_READ_AGAIN
    async with served(tmp_path / "data", http=("127.0.0.1:0",), grpc=("127.0.0.1:0",)) as running:
        server = running.server
        for name, (value, ask, answer) in LIVE.items():
            assert name.startswith("retention_") or ask(server) != answer, name
            server.change_settings(msgspec.structs.replace(server.config, **{name: value}), "the test")
            assert ask(server) == answer, name
        for name in limits:
            server.change_settings(msgspec.structs.replace(server.config, **{name: 2**21}), "the test")
            limit = name.removeprefix("identity_")
            assert getattr(_usages(server).limits_of("token:x"), limit) == 2**21, name
        assert {name: getattr(server.config, name) for name in LIVE} == {name: LIVE[name][0] for name in LIVE}


async def test_settings_that_need_a_start_stay(tmp_path: Path) -> None:
    """Goal: a setting that changes at a start is named and not half applied. Method: all of them at once."""
    async with served(tmp_path / "data") as running:
        before = running.server.config
        fields = {field.name: field for field in msgspec.structs.fields(Config) if field.name not in WHILE_RUNNING}
        others = {name: "x" if field.type in (str, str | None) else 9 for name, field in fields.items()}
        with capture_logs() as lines:
            running.server.change_settings(msgspec.structs.replace(before, **others), "the test")
        assert running.server.config == before
        (line,) = [line for line in lines if line["event"] == "settings_loaded"]
        assert line["changed"] == []
        assert {each.partition(":")[0] for each in line["at_next_start"]} == set(others)


def test_a_worker_process_compares_the_file_with_its_own_ports() -> None:
    """Goal: `settings_loaded` lists no change that is none. Method: the settings of the whole node, unchanged, are
    given to its second worker, whose doors are one port higher and whose name in the cluster is longer."""
    place = WorkerPlace(1, ["a:1", "a:2"], public=[], private=0, supervisor=0, report=0, use=0, secret="s")
    http, grpc = ("127.0.0.1:8080",), ("127.0.0.1:40840",)
    whole = Config(workers=2, database="postgresql://a/b", cluster="n", http=http, grpc=grpc)
    worker = Server(own_settings(whole, place), place=place)
    worker._parts = cast(NodeParts, SimpleNamespace(config=worker.config))
    with capture_logs() as lines:
        worker.change_settings(whole, "the test")
    (line,) = [line for line in lines if line["event"] == "settings_loaded"]
    assert (line["changed"], line["at_next_start"]) == ([], [])
