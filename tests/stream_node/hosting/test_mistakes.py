"""Goal: a mistake in the workers of an operator is told before the node serves, with what is wrong and what to do.

Method: each mistake is in the settings of a server; `config check` and `doctor` are the real commands.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ockam import local
from stream_node import Config, ConfigError, Server
from stream_node.cli.app import first_cause
from stream_node.hosting.specification import MakeWorker, load_workers, parse_worker
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeNotStarted, NodeProcess
from tests.cli.command import CommandLine
from tests.stream_node.hosting.sample_workers import Echo
from tests.style.tree import ROOT
from tests.support.served import served

SAMPLES = "tests.stream_node.hosting.sample_workers"


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        ("my_workers:Echo@echo", "there is no module 'my_workers' for 'my_workers:Echo'; install it, or name"),
        (f"{SAMPLES}.more:Echo@echo", "there is no module"),
        (f"{SAMPLES}:Ecko@echo", "has no class 'Ecko'; correct the name"),
        (f"{SAMPLES}:os@echo", "has no class 'os'"),
        (f"{SAMPLES}:NoWorker@echo", "NoWorker is no worker; derive the class from ockam.Worker or"),
        (f"{SAMPLES}:Echo@echo?greetin=x", "does not take these options: got an unexpected keyword argument 'greetin'"),
        (f"{SAMPLES}:WrongRight@echo", "declares the right 'fly', which is none; there are read, write,"),
        (f"{SAMPLES}:Echo@stream_service", "'stream_service' belongs to the node itself; choose another one"),
        (f"{SAMPLES}:Echo@ST_S_0123", "belongs to the node itself"),
        (f"{SAMPLES}:Echo@forward_to_alice", "belongs to the node itself"),
        (f"{SAMPLES}:Echo@FWD_0123", "belongs to the node itself"),
        (f"{SAMPLES}:Worker@echo", "Worker is no worker; derive the class"),
        (f"{SAMPLES}:Echo@a b", "is not 1 to 64 letters, digits"),
        (f"{SAMPLES}:Echo", "has no class or no address; write MODULE:CLASS@ADDRESS"),
        ("nobody", "no installed package offers a worker 'nobody'; there are: "),
    ],
)
async def test_a_mistake_ends_the_start_and_is_told(tmp_path: Path, worker: str, told: str) -> None:
    server = Server(Config(data_dir=str(tmp_path), listen="127.0.0.1:0", worker=(worker,)))
    with pytest.raises(ConfigError) as caught:
        await server.serve()
    (mistake,) = caught.value.mistakes
    assert mistake.startswith("worker: ")
    assert told in mistake
    assert server.addresses == []


async def test_all_mistakes_are_told_together() -> None:
    config = Config(worker=("no_module:A@a", f"{SAMPLES}:Echo@echo", f"{SAMPLES}:Echo@echo", "?"))
    with pytest.raises(ConfigError) as caught:
        load_workers(config)
    assert len(caught.value.mistakes) == 3
    assert "two workers have the address 'echo'" in str(caught.value)


def test_the_commands_that_check_settings_name_the_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command = CommandLine(monkeypatch, capfdbinary)
    file = tmp_path / "node.toml"
    file.write_text(f'data_dir = "{tmp_path}"\n\n[workers]\necho = "{SAMPLES}:Ecko"\n')
    assert "has no class 'Ecko'" in command("config", "check", str(file)).failed(2)
    told = command("doctor", "--config", str(file)).text
    assert "has no class 'Ecko'; correct the name" in told
    assert "the node does not start" in told


def test_a_table_of_a_file_says_the_same_as_the_texts(tmp_path: Path) -> None:
    """Options keep their types, and the number of processes stands in the table."""
    file = tmp_path / "node.toml"
    file.write_text(
        f'[workers]\nprocesses = 2\nplain = "{SAMPLES}:Echo"\n\n[workers.echo]\nclass = "{SAMPLES}:Echo"\n'
        'greeting = "100 & more"\ntimes = 2\nflags = [true, "false"]\n'
    )
    config = load_config({}, file=file, environment={})
    assert config.workers == 2
    plain, echo = map(parse_worker, config.worker)
    assert (plain.address, plain.code, plain.options) == ("plain", f"{SAMPLES}:Echo", {})
    assert echo.options == {"greeting": "100 & more", "times": 2, "flags": [True, "false"]}
    by_variable = load_config({}, environment={"STREAM_NODE_WORKER": ",".join(config.worker[:1])})
    assert by_variable.worker == config.worker[:1]


@pytest.mark.parametrize(
    "text", ["[workers]\necho = 3\n", "[workers.echo]\ngreeting = 'x'\n", "worker = ['a:B@c']\n[workers]\nd = 'a:B'\n"]
)
def test_a_table_that_says_no_class_or_says_it_twice_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="worker: "):
        load_config({}, file=file, environment={})


@pytest.mark.parametrize("worker", ["sample", "sample@other"])
async def test_a_package_offers_a_worker_that_runs_only_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    """Method: a package as pip leaves it, whose metadata name a class of this folder."""
    information = tmp_path / "sample_pack-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-pack\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[stream_node.workers]\nsample = {SAMPLES}:Echo\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert load_workers(Config()) == []
    async with served(tmp_path / "data", worker=(worker,)) as node:
        address = worker.rpartition("@")[2]
        assert (await (await node.peer()).ask((local(address),), b"hello")).payload == b"hello"


@pytest.mark.parametrize("made", [Echo, lambda: Echo("hello "), f"{SAMPLES}:Echo"])
async def test_a_program_gives_its_server_workers(tmp_path: Path, made: str | MakeWorker) -> None:
    import trio

    from tests.support.stream_peer import stream_peer

    workers: Mapping[str, Any] = {"mine": made}
    server = Server(Config(data_dir=str(tmp_path), listen="127.0.0.1:0"), workers=workers)
    async with trio.open_nursery() as nursery:
        address, *_ = await nursery.start(server.serve)
        async with stream_peer(address) as peer:
            assert (await peer.ask((local("mine"),), b"you")).payload.endswith(b"you")
        server.stop()


async def test_what_a_program_makes_must_be_a_worker(tmp_path: Path) -> None:
    made: Any = dict
    server = Server(Config(data_dir=str(tmp_path), listen="127.0.0.1:0"), workers={"mine": lambda: made()})
    with pytest.raises(ExceptionGroup) as caught:
        await server.serve()
    assert "the worker at mine does not start: TypeError('{} is no worker')" in str(first_cause(caught.value))


def test_a_constructor_that_fails_ends_the_command(tmp_path: Path) -> None:
    arguments = ["--worker", f"{SAMPLES}:Failing@echo"]
    with (
        pytest.raises(NodeNotStarted, match=r"ended with 2: .*RuntimeError.*correct its class"),
        NodeProcess(tmp_path / "data", arguments=arguments, environment={"PYTHONPATH": str(ROOT)}),
    ):
        pass
