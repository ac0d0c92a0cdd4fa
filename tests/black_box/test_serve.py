"""Goal: `stream-node serve` says where it listens, takes its settings from where it should, and refuses what is wrong.

Method: the running command; for the order of settings also its function, with every source given.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from ockam.actors.address import split_host_port
from stream_node.node.config import Config, ConfigError
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeProcess
from tests.support.command import Command
from tests.support.stream_peer import stream_peer


def first_line(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_it_prints_one_json_line_when_it_listens_and_nothing_else(command: Command, tmp_path: Path) -> None:
    with command.start("serve", "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0") as process:
        line = first_line(process)
        (address,) = line["addresses"]
        host, port = split_host_port(address)
        trio.run(reach, address)
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (line["event"], line["pid"], line["data_dir"]) == ("listening", process.pid, str(tmp_path / "data"))
    assert host == "127.0.0.1"
    assert port > 0
    assert (process.returncode, out) == (0, b"")
    logged = [json.loads(each) for each in err.splitlines()]
    assert [each["event"] for each in logged] == [
        *("started", "stream_created", "draining", "busiest_clients", "stopped"),
    ]
    assert all(each["level"] == "info" and each["timestamp"] for each in logged)


async def reach(address: str) -> None:
    async with stream_peer(address) as peer:
        assert await peer.create("s")


def test_it_makes_its_data_directory_in_the_platforms_place_unless_told_otherwise(
    command: Command, tmp_path: Path
) -> None:
    with command.start("serve", "--listen", "127.0.0.1:0") as process:
        data_dir = Path(first_line(process)["data_dir"])
        process.terminate()
        process.communicate(timeout=60)
    assert data_dir == tmp_path / "home" / "stream-node"
    assert (data_dir / "streams.sqlite").exists()


def test_a_port_in_use_is_told_in_one_line(command: Command, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "first") as node:
        done = command("serve", "--data-dir", tmp_path / "second", "--listen", node.address)
        assert (done.code, done.out) == (1, b"")
        assert "in use" in done.error
        assert node.stop() == 0


SETTINGS: dict[str, tuple[Any, str, Any, Any]] = {
    "listen": ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4000"),
    "data_dir": ("flag", "environment", "file", Config().data_dir),
    "log_level": ("debug", "warning", "error", "info"),
    "allow_forward": (("a:1", "b:2"), "c:3, d:4", ["e:5"], ()),
    "partitions_max": (1, "2", 3, 4_096),
    "error_delay_s": (0.1, "0.2", 0.3, 1.0),
    "idle_timeout_s": (1.0, "2", 3, None),
}
"""Of each setting: on the command line, in the environment, in the file, and its default."""


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("sources", [1, 2, 3, 4], ids=["all", "no-flag", "only-file", "none"])
def test_flags_come_before_the_environment_before_the_file_before_defaults(
    tmp_path: Path, name: str, sources: int
) -> None:
    flag, variable, in_file, default = SETTINGS[name]
    file = tmp_path / "node.toml"
    file.write_text(f"{name} = {json.dumps(in_file)}\n" if sources <= 3 else "")
    environment = {f"STREAM_NODE_{name.upper()}": variable} if sources <= 2 else {}
    config = load_config({name: flag if sources <= 1 else None}, file=file, environment=environment)
    lists = {"c:3, d:4": ("c:3", "d:4")}
    expected = (flag, lists.get(variable, type(default)(variable) if default is not None else 2.0), in_file, default)
    found = getattr(config, name)
    wanted = expected[sources - 1]
    assert found == (tuple(wanted) if isinstance(wanted, list) else wanted)


def test_each_source_works_in_the_running_command(command: Command, tmp_path: Path) -> None:
    """The address from the command line, the directory from the environment, the level of logs from the file."""
    file = tmp_path / "node.toml"
    file.write_text('listen = "not an address"\ndata_dir = "/nowhere/at/all"\nlog_level = "warning"\n')
    environment = {"STREAM_NODE_DATA_DIR": str(tmp_path / "data"), "STREAM_NODE_LISTEN": "not an address either"}
    arguments = ("serve", "--config", file, "--listen", "127.0.0.1:0")
    with command.start(*arguments, environment=environment) as process:
        line = first_line(process)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert line["data_dir"] == str(tmp_path / "data")
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param("lisen = '127.0.0.1:1'", ["unknown setting 'lisen'", "there is 'listen'"], id="unknown"),
        pytest.param("listen = 4000", ["listen", "str"], id="wrong-type"),
        pytest.param("listen = 'nowhere'", ["listen", "HOST:PORT"], id="no-address"),
        pytest.param("listen = 'h:65536'", ["listen", "HOST:PORT"], id="port-above-65535"),
        pytest.param("allow_forward = ['ok:1', 'x']", ["allow_forward", "HOST:PORT"], id="no-destination"),
        pytest.param("log_level = 'loud'", ["log_level", "'loud'", "debug, info, warning, error"], id="level"),
        pytest.param("streams_max = 'many'", ["streams_max"], id="no-number"),
        pytest.param("listen = ", ["not TOML"], id="no-toml"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_may_be(tmp_path: Path, content: str, said: list[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config({}, file=file, environment={})
    assert all(words in str(caught.value) for words in said), caught.value


def test_a_wrong_setting_ends_the_command_with_2_and_one_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("lisen = '127.0.0.1:1'")
    done = command("serve", "--config", file)
    assert (done.code, done.out) == (2, b"")
    assert "unknown setting 'lisen'" in done.error
    assert str(file) in done.error


def test_a_configuration_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for file in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            load_config({}, file=file, environment={})
    (tmp_path / "latin1.toml").write_bytes(b"data_dir = '\xff'")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config({}, file=tmp_path / "latin1.toml", environment={})
