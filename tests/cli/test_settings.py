"""The value of every setting and where it came from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stream_node.config import Config
from tests.cli.command import CommandLine
from tests.cli.schemas import ConfigChecked, ConfigShown, Setting


def test_every_setting_is_shown_with_its_origin(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('log_level = "debug"\nlisten = "127.0.0.1:1"\npartitions_max = 7\n')
    monkeypatch.setenv("STREAM_NODE_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("STREAM_NODE_PARTITIONS_MAX", "8")
    shown = command("config", "show", "--config", file, "--listen", "127.0.0.1:3", "--json").read(ConfigShown)
    by_name = {setting.name: setting for setting in shown.settings}
    assert list(by_name) == [field.name for field in msgspec.structs.fields(Config)]
    assert by_name["listen"] == Setting("listen", "127.0.0.1:3", "flag", "--listen")
    assert by_name["partitions_max"] == Setting("partitions_max", 8, "environment", "STREAM_NODE_PARTITIONS_MAX")
    assert by_name["log_level"] == Setting("log_level", "debug", "file", str(file))
    assert by_name["streams_max"] == Setting("streams_max", 100_000, "default", None)


def test_settings_are_shown_to_people_as_a_table(command: CommandLine) -> None:
    lines = command("config", "show", "--allow-forward", "a:1", "--allow-forward", "b:2").text.splitlines()
    rows = {tuple(line.split()) for line in lines}
    assert {
        ("setting", "value", "from"),
        ("allow_forward", "a:1,b:2", "--allow-forward"),
        ("idle_timeout_s", "none", "default"),
    } <= rows


def test_right_settings_are_counted(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = len(msgspec.structs.fields(Config))
    assert command("config", "check", "--json").read(ConfigChecked) == ConfigChecked(True, settings, 0)
    monkeypatch.setenv("STREAM_NODE_LOG_LEVEL", "debug")
    assert command("config", "check").text == f"1 setting given, {settings - 1} left at the default: all right\n"


@pytest.mark.parametrize("verb", ["check", "show"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("logging = 1", "unknown setting 'logging' in "),
        ("partitions_max = 'many'", "partitions_max in "),
        ("= 3", "is not TOML"),
        ("lease_ttl_s = 0", "lease_ttl_s in "),
        ("retention_interval_s = 0", "Expected `float` > 0.0"),
        ("frame_timeout_s = inf", "frame_timeout_s in "),
        ("connections_max = 0", "Expected `int` >= 1"),
        ("retention_bytes = -1", "Expected `int` >= 0"),
        (None, "cannot read the configuration"),
    ],
)
def test_wrong_settings_are_wrong_usage(
    command: CommandLine, tmp_path: Path, verb: str, text: str | None, says: str
) -> None:
    file = tmp_path / "node.toml"
    if text is not None:
        file.write_text(text)
    assert says in command("config", verb, "--config", file).failed(2)
