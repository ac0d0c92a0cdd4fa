"""Goal: a reader of the log that does not read cannot hold up the node. Method: a real pipe that nobody empties."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from stream_client import blocking
from stream_node.node.log_writer import LogWriter
from stream_node.node.process import NodeProcess


def test_lines_come_out_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as out:
        writer = LogWriter(out)
        for number in range(1_000):
            writer.write(f"{number}\n")
        writer.close()
        writer.close()
    assert (tmp_path / "log").read_text().splitlines() == [str(number) for number in range(1_000)]


def test_what_a_command_prints_follows_what_it_logged(tmp_path: Path) -> None:
    """Goal: the error that ends a command is its last line. Method: a file that both write to, line by line."""
    with (tmp_path / "log").open("w", buffering=1) as out:
        writer = LogWriter(out)
        for number in range(0, 1_000, 2):
            writer.write(f"{number}\n")
            writer.wait()
            out.write(f"{number + 1}\n")
        writer.close()
        writer.wait()
    assert (tmp_path / "log").read_text().splitlines() == [str(number) for number in range(1_000)]


def test_a_pipe_that_nobody_reads_blocks_nobody_and_the_loss_is_told() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out, os.fdopen(reading) as pipe:
        writer = LogWriter(out, lines_max=10)
        for _ in range(1_000):
            writer.write("x" * 1_000 + "\n")
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(pipe))
        reader.start()
        writer.close()
        out.close()
        reader.join()
    told = [json.loads(line) for line in lines if line.startswith("{")]
    written = sum(1 for line in lines if line.startswith("x"))
    assert 0 < written < 200, "the pipe holds 64 lines, and the queue 10"
    assert written + sum(each["count"] for each in told) == 1_000


def test_a_node_whose_stderr_is_full_serves_on(tmp_path: Path) -> None:
    """Each refused request writes a line; the pipe has room for some hundred."""
    reading, writing = os.pipe()
    try:
        with NodeProcess(tmp_path / "data", log_file=Path(f"/proc/self/fd/{writing}")) as node:
            with blocking.connect(node.address) as client:
                stream = client.create("s")
                for number in range(3_000):
                    client.session.core.notify("stream_service", b"no protocol %d" % number)
                    client.session.shell.exchange_nowait()
                assert stream.push(b"served") == 0
            assert node.stop() == 0
    finally:
        os.close(reading)
        os.close(writing)
