"""Goal: programs that use the clients are checked against their types. Method: mypy, and pyright where it is there, on
small programs in a folder of their own; the packages are found as installed ones are, by their `py.typed`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

RIGHT = """
from collections.abc import Sequence
from typing import assert_type

from stream_client import SavedIndexes, list_positions
from stream_client.blocking import SavedIndexes as BlockingIndexes
from stream_client import LeaseMember
from ockam.actors.address import local
from stream_client import (
    FIRST, LAST, ClientError, Consumer, Header, Page, Push, Reconnect, Retention, RichMessage, RoutedMessage, StartLike,
    Stream, StreamMessage, blocking, connect,
)


async def publish(stream: Stream) -> int:
    async with stream.publisher(window=10, idempotent=True) as publisher:
        push = await publisher.push(b"x", key=b"k", headers=[Header("a", b"b")])
        assert_type(push, Push)
        assert_type(await publisher.push_many([b"y"]), list[int])
    return push.result()


async def main() -> None:
    async with connect("127.0.0.1:4000", reconnect=Reconnect(give_up_s=5.0)) as client:
        stream = await client.create("orders")
        assert_type(stream, Stream)
        assert_type(await stream.push(b"x"), int)
        assert_type(await stream.pull(), Sequence[StreamMessage])
        assert_type(await stream.pull_page(FIRST), Page)
        async for message in stream.follow():
            assert_type(message, RichMessage)
        positions = SavedIndexes(client, "mailer")
        async with stream.consumer(positions, save_interval_s=0.5) as consumer:
            assert_type(consumer, Consumer)
            async for message in consumer:
                assert_type(message.data, bytes)
        parts = await client.create_partitioned("orders", 3)
        async with parts.shared_consumer(LeaseMember(client, "mailer")) as shared:
            async for partition, message in shared:
                assert_type(partition, int)
                assert_type(message, RichMessage)
        async for position in list_positions(client, stream_name="orders"):
            assert_type(position.holder, str | None)
        await stream.set_retention(Retention(age_s=3600))
        answer = await (await client.correspondent()).request("other", (local("echo"),), b"hello")
        assert_type(answer, RoutedMessage)
        try:
            await publish(stream)
        except ClientError as error:
            assert_type(error.retriable, bool)
            print(error.fault)


class Last(blocking.Stream):
    def find_index(self, start: StartLike = LAST) -> int:
        return super().find_index(start)


def script() -> None:
    with blocking.connect() as client:
        stream = client.create("orders")
        assert_type(stream.push(b"x"), int)
        assert_type([info.partition for info in map(blocking.Stream.info, [stream])], list[int])
        for message in stream.follow(stop_at_end=True):
            assert_type(message, RichMessage)
        with stream.publisher() as publisher:
            assert_type(publisher.push(b"x"), Push)
        with stream.consumer(BlockingIndexes(client, "mailer")) as consumer:
            for message in consumer.messages(stop_at_end=True):
                assert_type(message.time_us, int)
"""

WRONG = {
    "an await is missing": "async def f(stream: Stream) -> int:\n    return stream.push(b'x')",
    "a number is not data": "async def f(stream: Stream) -> int:\n    return await stream.push(5)",
    "no such option": "def f(stream: Stream, positions: Positions) -> None:\n    stream.consumer(positions, pages=3)",
    "blocking positions": (
        "def f(stream: Stream, client: blocking.StreamClient) -> None:\n"
        "    stream.consumer(BlockingIndexes(client, 'c'))"
    ),
    "blocking is not awaited": ("async def f(stream: blocking.Stream) -> int:\n    return await stream.push(b'x')"),
}
HEAD = """
from stream_client.blocking import SavedIndexes as BlockingIndexes
from stream_client import blocking
from stream_client import Positions, Stream

__all__ = ["BlockingIndexes", "Positions", "Stream", "blocking"]
"""


def environment(folder: Path) -> str:
    """The interpreter of a virtual environment in which this project, and what it needs, is installed."""
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    (site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (site_packages / "installed.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    return str(folder / "venv" / "bin" / "python")


def mypy(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\nexclude = venv\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", environment(folder)]
    command += ["--cache-dir", str(folder / "cache"), "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.soak
def test_mypy_accepts_right_programs_and_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    for number, text in enumerate(WRONG.values()):
        (tmp_path / f"wrong{number}.py").write_text(f"{HEAD}\n\n{text}\n")
    found = mypy(tmp_path).stdout
    lines = [line for line in found.splitlines() if ": error: " in line]
    assert [line for line in lines if line.startswith("right.py")] == [], found
    for number, what in enumerate(WRONG):
        assert [line for line in lines if line.startswith(f"wrong{number}.py")], f"{what}: not found\n{found}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_accepts_right_programs(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = ["pyright", "--pythonpath", environment(tmp_path), "right.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
