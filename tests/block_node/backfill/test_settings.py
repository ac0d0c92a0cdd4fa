"""Claim: backfill is configured by the names and defaults of specs/backfill.md, and what cannot work is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from block_node.backfill.settings import BackfillSettings, BackfillSettingsError, SourceSetting, describe_sources
from stream_node.care.doctor_access import check_sources
from stream_node.cli.node.serve import report_listening
from stream_node.node.block_services import read_trust
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config

SPECIFIED = {
    "firstBlockAvailable": ("first_block_available", 0, 7),
    "lastBlockToStore": ("last_block_to_store", -1, 99),
    "blockNodeSources": ("block_node_sources", (), ("10.0.0.1:4000", "[::1]:4001@2")),
    "scanIntervalSecs": ("scan_interval_secs", 60.0, 1.5),
    "maxRetries": ("max_retries", 3, 5),
    "fetchBatchSize": ("fetch_batch_size", 100, 10),
}
"""Of the specification's table: our name, the default, and another value."""


def written(value: object) -> str:
    """As TOML."""
    return str(list(value)) if isinstance(value, tuple) else str(value)


def test_the_names_of_the_specification_stand_in_a_table(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    lines = [f"{name} = {written(value)}" for name, (_, _, value) in SPECIFIED.items()]
    file.write_text("\n".join(["[backfill]", *lines, "initialRetryDelaySecs = 2.5", "greedy = true"]))
    config = load_config({}, file=file, environment={})
    for ours, default, value in SPECIFIED.values():
        assert getattr(config, f"backfill_{ours}") == value
        assert getattr(Config(), f"backfill_{ours}") == getattr(BackfillSettings(), ours) == default
    assert (config.backfill_initial_retry_delay_secs, config.backfill_greedy) == (2.5, True)
    read_trust(config)
    sources = BackfillSettings(block_node_sources=config.backfill_block_node_sources).sources()
    assert sources[1] == SourceSetting("[::1]:4001", ("[::1]:4001",), 2)


def test_the_sources_of_a_block_node_of_hiero_are_read_as_they_stand(tmp_path: Path) -> None:
    """Its file has names as in `block_node_source.proto`, or as protobuf's JSON writes them. All sources speak gRPC."""
    tuning = {"connect_timeout": 1000, "prior_knowledge": True, "max_frame_size": 2097152}
    nodes = [
        {"address": "one.example", "port": 40840, "priority": 1, "node_id": 1, "name": "one"},
        {"address": "two.example", "port": 40840, "status_port": 40841, "subscribe_port": 40842, "scheme": "https"},
        {"address": "::1", "port": 40840, "priority": 2, "statusPort": 7, "grpc_webclient_tuning": tuning},
    ]
    file = tmp_path / "block-nodes.json"
    file.write_text(json.dumps({"nodes": nodes}))
    settings = BackfillSettings(block_node_sources=("127.0.0.1:4000", str(file)))
    settings.check()
    assert settings.sources()[1:] == [
        SourceSetting("grpc://one.example:40840", ("one.example:40840",), 1, "grpc"),
        SourceSetting("grpcs://two.example:40840", ("two.example:40842",), 0, "grpcs", "two.example:40841"),
        SourceSetting("grpc://[::1]:40840", ("[::1]:40840",), 2, "grpc", "[::1]:7"),
    ]
    assert describe_sources(settings.block_node_sources) == {
        "127.0.0.1:4000": "Ockam routing",
        "grpc://one.example:40840": "gRPC",
        "grpcs://two.example:40840": "gRPC over TLS",
        "grpc://[::1]:40840": "gRPC",
    }


def test_the_line_at_the_start_says_how_a_source_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(block_node=True, backfill_block_node_sources=("127.0.0.1:4000", "grpc://127.0.0.1:40840"))
    report_listening(config, ["127.0.0.1:4001"], [], as_json=True)
    told = json.loads(capsys.readouterr().out)["backfill_sources"]
    assert told == {"127.0.0.1:4000": "Ockam routing", "grpc://127.0.0.1:40840": "gRPC"}
    finding = check_sources(config)
    assert (finding.check, finding.status, finding.values) == ("sources", "ok", told)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"nodes": [{"port": 1}]}',
        '{"nodes": [{"address": "a", "port": 70000}]}',
        '{"nodes": [{"address": "a", "port": 1, "scheme": "ftp"}]}',
        '{"nodes": [1]}',
        "nodes",
    ],
)
def test_a_file_that_is_none_of_sources_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sources.json"
    file.write_text(text)
    for path in (file, tmp_path / "none.json"):
        with pytest.raises(BackfillSettingsError, match="no file of sources"):
            BackfillSettings(block_node_sources=(str(path),)).check()


def test_a_variable_takes_the_place_of_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[backfill]\nscanIntervalSecs = 5\nmaxRetries = 1\n")
    config = load_config({}, file=file, environment={"STREAM_NODE_BACKFILL_MAX_RETRIES": "9"})
    assert (config.backfill_scan_interval_secs, config.backfill_max_retries) == (5.0, 9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("backfill = 3", "is a table"),
        ("[backfill]\nscanInterval = 3", "unknown setting 'backfill_scan_interval'"),
        ("[backfill]\nscanIntervalSecs = 0", "backfill_scan_interval_secs"),
        ("[backfill]\nfetchBatchSize = 0", "backfill_fetch_batch_size"),
        ("[backfill]\nmaxRetries = -1", "backfill_max_retries"),
        ("backfill_max_retries = 1\n[backfill]\nmaxRetries = 2", "is given twice"),
        ('[backfill]\nblockNodeSources = ["nowhere"]', "blockNodeSources"),
        ('[backfill]\nblockNodeSources = ["grpc://a..b:1"]', "blockNodeSources"),
        ('[backfill]\nblockNodeSources = ["a:1", "a:1@3"]', "named twice"),
        ("[backfill]\nfirstBlockAvailable = 5\nlastBlockToStore = 4", "lastBlockToStore"),
        ("[backfill]\nmaxBackoffSecs = 1", "max_backoff_secs"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config({}, file=file, environment={})


@pytest.mark.parametrize("text", ["", "a", "a:", ":1@2@3", "a:1>", "a:1@-1", "a:1@x", "a:70000"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(BackfillSettingsError, match="blockNodeSources"):
        BackfillSettings(block_node_sources=(text,)).check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first_block_available", -1),
        ("last_block_to_store", -2),
        ("scan_interval_secs", 0.0),
        ("max_retries", -1),
        ("fetch_batch_size", 0),
        ("initial_retry_delay_secs", 0.0),
        ("max_incoming_buffer_size", 0),
        ("concurrent_fetches", 0),
        ("fetch_timeout_secs", 0.0),
        ("processing_timeout_secs", 0.0),
    ],
)
def test_a_program_that_starts_a_node_cannot_set_what_cannot_work_either(name: str, value: float) -> None:
    """Nothing has checked the settings that it gives."""
    given: dict[str, Any] = {f"backfill_{name}": value}
    with pytest.raises(ConfigError, match=name):
        read_trust(Config(**given))
