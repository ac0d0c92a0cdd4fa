"""The value of every setting and where it came from."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from stream_node.node.config import OTHERS, Amount, Config, ConfigError, Count, Delay, LeaseTime, MemoryBytes, Seconds
from stream_node.node.config_sources import load_config
from tests.cli.command import CommandLine
from tests.cli.promised import promised


def test_every_setting_is_shown_with_its_origin(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('log_level = "debug"\nlisten = "127.0.0.1:1"\npartitions_max = 7\n')
    monkeypatch.setenv("STREAM_NODE_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("STREAM_NODE_PARTITIONS_MAX", "8")
    shown = command("config", "show", "--config", file, "--listen", "127.0.0.1:3", "--json").read(promised.ConfigShown)
    by_name = {setting.name: setting for setting in shown.settings}
    assert list(by_name) == [field.name for field in msgspec.structs.fields(Config)]
    assert by_name["listen"] == promised.Setting("listen", "127.0.0.1:3", "flag", "--listen")
    assert by_name["partitions_max"] == promised.Setting(
        "partitions_max", 8, "environment", "STREAM_NODE_PARTITIONS_MAX"
    )
    assert by_name["log_level"] == promised.Setting("log_level", "debug", "file", str(file))
    assert by_name["streams_max"] == promised.Setting("streams_max", 100_000, "default", None)


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
    assert command("config", "check", "--json").read(promised.ConfigChecked) == promised.ConfigChecked(
        True, settings, 0, []
    )
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


def test_all_mistakes_are_told_at_once_each_with_what_was_meant(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: whoever writes a file of settings corrects it once. Method: a mistake of every kind, in every source."""
    file = tmp_path / "node.toml"
    file.write_text(
        "lisen = 'x'\nretention_age_s = '7 days'\n# A comment.\npartitions_max = 0\n"
        "tls_forward_plaintext = [\n    'a:1',\n]\nlog_level = 'loud'\nqqqqqqq = 1\n"
        "[backfill]\nscanInterval = 1\n"
    )
    monkeypatch.setenv("STREAM_NODE_RETENTION_AGE", "7d")
    monkeypatch.setenv("STREAM_NODE_PULL_BYTES_MAX", "1 potato")
    addresses = "--listen", "no where", "--allow-forward", "x:y", "--allow-forward", "a..b:1"
    done = command("config", "check", "--config", file, *addresses)
    assert (done.code, done.stdout) == (2, b"")
    said = done.stderr.splitlines()
    assert len(said) == 12
    for words in (
        "unknown variable STREAM_NODE_RETENTION_AGE in the environment; there is 'STREAM_NODE_RETENTION_AGE_S'",
        f"unknown setting 'lisen' in {file} line 1; there is 'listen'",
        f"unknown setting 'qqqqqqq' in {file} line 9; `stream-node config show` lists",
        f"unknown setting 'backfill_scan_interval' in {file} line 11; there is 'backfill_scan_interval_secs'",
        f"retention_age_s in {file} line 2: '7 days' is not a duration",
        f"partitions_max in {file} line 4: Expected",
        f"tls_forward_plaintext in {file} line 5: has no effect without tls_forward_ca",
        "pull_bytes_max in the environment (STREAM_NODE_…): '1 potato' is not a size",
        "listen on the command line: 'no where' is not HOST:PORT",
        "allow_forward on the command line: 'x:y' is not HOST:PORT",
        "allow_forward on the command line: 'a..b:1' is not HOST:PORT",
        f"log_level in {file} line 8: 'loud' is not one of debug, info",
    ):
        assert sum(words in line for line in said) == 1, words


def test_mistakes_are_told_to_programs_too(command: CommandLine, tmp_path: Path) -> None:
    """Goal: a program that deploys settings gets every mistake as data. Method: a file with a wrong value on its second
    line, which names a file of rules with a wrong right; then the same two files, corrected."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "all"\nwho = ["*"]\nmay = ["reed"]\non = [""]\n')
    file = tmp_path / "node.toml"
    file.write_text(f"access_rules = '{rules}'\nstreams_max = 0\n")
    done = command("config", "check", file, "--json")
    assert (done.code, done.stderr) == (2, "")
    (wrong,) = msgspec.json.decode(done.stdout, type=promised.ConfigChecked).mistakes
    assert wrong.startswith(f"streams_max in {file} line 2: ")
    file.write_text(f"access_rules = '{rules}'\nstreams_max = 9\n")
    assert f"{rules} line 1, rule 'all': may: 'reed' is no right" in command("config", "check", file).failed(2)
    rules.write_text(rules.read_text().replace("reed", "read"))
    settings = len(msgspec.structs.fields(Config))
    assert command("config", "check", file, "--json").read(promised.ConfigChecked) == promised.ConfigChecked(
        True, settings, 2, []
    )
    assert "either as FILE or with --config" in command("config", "check", file, "--config", file).failed(2)


def test_a_node_that_would_not_start_unprotected_fails_the_check(command: CommandLine) -> None:
    """Goal: what `serve` refuses, `config check` refuses. Method: an address that other machines reach."""
    assert "without TLS" in command("config", "check", "--listen", "0.0.0.0:4000").failed(2)


def test_times_and_sizes_are_written_as_people_do(tmp_path: Path) -> None:
    """Goal: one way to write them in a file and in the environment, the command line's; numbers stay what they were."""
    file = tmp_path / "node.toml"
    file.write_text('retention_age_s = "7d"\nblock_bytes_max = "64MiB"\n[backfill]\nscanIntervalSecs = "2m"\n')
    environment = {
        "STREAM_NODE_FREE_DISK_BYTES_MIN": "1GB",
        "STREAM_NODE_IDLE_TIMEOUT_S": "1h",
        "STREAM_NODE_ERROR_DELAY_S": "0.25",
        "STREAM_NODE_PULL_BYTES_MAX": "70000",
    }
    config = load_config({}, file=file, environment=environment)
    assert (config.retention_age_s, config.block_bytes_max, config.backfill_scan_interval_secs) == (604_800, 2**26, 120)
    assert (config.free_disk_bytes_min, config.idle_timeout_s) == (10**9, 3_600)
    assert (config.error_delay_s, config.pull_bytes_max) == (0.25, 70_000)
    with pytest.raises(ConfigError, match="Expected `float` <= "):
        load_config({}, environment={"STREAM_NODE_FRAME_TIMEOUT_S": "300w"})


@pytest.mark.parametrize("field", msgspec.structs.fields(Config), ids=lambda field: field.name)
def test_every_time_and_size_takes_its_unit(field: msgspec.structs.FieldInfo) -> None:
    """By the types of the settings, not by their names, which is how the units are found."""
    times = (Seconds, Seconds | None, Delay, LeaseTime)
    is_time = field.type in times or field.name == "retention_age_s"
    numbers = (Count, Count | None, Amount, Amount | None, MemoryBytes)
    is_size = field.type in numbers and re.search("bytes|buffer_size", field.name)
    for text, taken in (("2m", is_time), ("2MiB", is_size)):
        environment = {f"STREAM_NODE_{field.name.upper()}": text}
        if taken:
            value = getattr(load_config({}, environment=environment), field.name)
            assert value == (120 if is_time else 2 * 1024 * 1024)
        elif field.type not in (str, str | None, tuple[str, ...]):
            with pytest.raises(ConfigError):
                load_config({}, environment=environment)


def test_a_variable_that_nothing_reads_is_an_error_for_every_command(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt STREAM_NODE_ADDRESS would lead to another node in silence."""
    monkeypatch.setenv("STREAM_NODE_ADRESS", "127.0.0.1:1")
    for arguments in (("pull", "s"), ("stream", "list"), ("block", "status"), ("verify",), ("config", "show")):
        said = command(*arguments).failed(2)
        assert "unknown variable STREAM_NODE_ADRESS in the environment; there is 'STREAM_NODE_ADDRESS'" in said


def test_variables_of_others_are_left_alone() -> None:
    """What the tests, CI, and a cluster with a service called stream-node set for every process."""
    cluster = {"SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_TCP", "PORT", "PORT_4000_TCP", "PORT_4000_TCP_ADDR"}
    environment = dict.fromkeys(OTHERS | {f"STREAM_NODE_{name}" for name in cluster}, "x")
    assert load_config({}, environment=environment) == Config()
    found = set()
    for folder in ("stream_node", "stream_storage", "spark_export", "tests", "examples", ".ci", "tools", "block_node"):
        for file in (Path(__file__).parents[3] / folder).rglob("*"):
            if file.is_file() and file.suffix in {".py", ".sh", ""} and file != Path(__file__):
                found |= set(re.findall(r"\bSTREAM_NODE_[A-Z0-9_]*[A-Z0-9]\b", file.read_text(errors="replace")))
    settings = {f"STREAM_NODE_{field.name.upper()}" for field in msgspec.structs.fields(Config)}
    assert found <= settings | OTHERS | {"STREAM_NODE_COMPLETE"}
