"""Goal: `top` shows what a node does, in a terminal of any size and for scripts, and leaves the terminal as it was.

Method: views of readings that were made by hand; a real node; the real command in pseudo-terminals, whose last drawing
is read without its colours.
"""

from __future__ import annotations

import json
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from index_service.extensions import SavedPosition
from stream_client import blocking
from stream_client.blocking import SavedIndexes
from stream_node.cli.output import duration_text, size_text
from stream_node.node.node_status import NodeStatus
from stream_node.node.process import NodeProcess
from stream_node.top.reading import SORT_KEYS, BlockStatus, Reading, make_view
from stream_node.top.screen import CONSUMER_COLUMNS, STREAM_COLUMNS, draw, fit, rate_text
from stream_service.extensions import StreamInfo
from tests.cli.command import CommandLine
from tests.cli.node.top_terminal import top_in_terminal
from tests.cli.promised import promised

NOW_US = 1_800_000_000_000_000


def status(messages: int, *, started_us: int = NOW_US, commits: int = 0, commit_us: int = 0) -> NodeStatus:
    return NodeStatus(
        request_id=1,
        version="9.9",
        schema_version=2,
        now_us=NOW_US + 60_000_000,
        started_us=started_us,
        connections=3,
        partitions=2,
        messages=messages,
        commits=commits,
        commit_us=commit_us,
        commit_us_max=0,
        reads=0,
        waiting=0,
        failed=0,
        refused=0,
        memory_bytes=0,
        free_disk_bytes=10**10,
        refusing_pushes=False,
        write_failure=None,
        chain="blocks",
    )


def info(name: str, end: int, *, first: int = 0, partition: int = 0, created_us: int = 1, size: int = 10) -> StreamInfo:
    return StreamInfo(name, partition, first, end, size, created_us, None, NOW_US, None)


def saved(client: str, name: str, index: int, *, partition: int = 0, holder: str | None = None) -> SavedPosition:
    return SavedPosition(client, name, partition, index, NOW_US, holder)


def reading(
    at_s: float,
    streams: list[StreamInfo],
    positions: Sequence[SavedPosition] = (),
    found: NodeStatus | None = None,
) -> Reading:
    return Reading(at_s, found, streams, list(positions), None, [])


def test_rates_and_lag_of_two_readings() -> None:
    before = reading(
        10.0,
        [info("a", 100), info("a", 50, partition=1), info("b", 7)],
        [saved("c", "a", 10), saved("c", "a", 20, partition=1)],
        status(1000, commits=10, commit_us=50_000),
    )
    now = reading(
        12.0,
        [info("a", 140, first=30), info("a", 50, partition=1), info("b", 0, created_us=2), info("new", 9)],
        [saved("c", "a", 10, holder="x"), saved("c", "a", 44, partition=1, holder="y"), saved("d", "gone", 5)],
        status(1100, commits=20, commit_us=110_000),
    )
    view = make_view(before, now, "lag")
    assert [(row.stream, row.messages, row.messages_per_s, row.lag, row.partitions) for row in view.streams] == [
        ("a", 160, 20.0, 116, 2),
        # A stream that was made anew, and one that was not there before, have no rate yet.
        ("b", 0, None, None, 1),
        ("new", 9, None, None, 1),
    ]
    # The consumer lacks the messages 30 to 139: those before 30 are not stored any more.
    assert [(row.client, row.stream, row.lag, row.messages_per_s, row.members) for row in view.consumers] == [
        ("c", "a", 110 + 6, 12.0, 2),
        ("d", "gone", 0, None, 0),
    ]
    rates = view.rates
    assert (rates.messages_per_s, rates.commits_per_s, rates.commit_ms) == (50.0, 5.0, 6.0)


def test_the_first_reading_and_a_restart_have_no_rates() -> None:
    before = reading(1.0, [info("a", 5)], [saved("c", "a", 1)], status(100))
    now = reading(2.0, [info("a", 9)], [saved("c", "a", 2)], status(3, started_us=NOW_US + 1))
    for view in (make_view(None, now, "rate"), make_view(before, now, "rate")):
        assert view.rates.messages_per_s is None
        assert (view.streams[0].messages_per_s, view.consumers[0].messages_per_s) == (None, None)
        assert view.consumers[0].lag == 7


def test_each_order_has_the_largest_first() -> None:
    before = reading(0.0, [info("a", 0), info("b", 0)])
    now = reading(1.0, [info("a", 5, size=1), info("b", 2, size=9)], [saved("c", "b", 0)])
    firsts = {key: make_view(before, now, key).streams[0].stream for key in SORT_KEYS}
    assert firsts == {"rate": "a", "lag": "b", "size": "b", "messages": "a", "name": "a"}


@given(
    width=st.integers(16, 200),
    height=st.integers(8, 60),
    names=st.lists(st.text(min_size=1, max_size=60), max_size=40, unique=True),
    note=st.text(max_size=200),
)
def test_a_drawing_fits_any_terminal_and_names_are_no_markup(
    width: int, height: int, names: list[str], note: str
) -> None:
    streams = [info(name, number) for number, name in enumerate(names)]
    positions = [saved(name, "[red]x[/red]", 1) for name in names]
    now = Reading(1.0, status(10), streams, positions, BlockStatus("[b]", 0, 9, 2, 10), [note])
    drawn = draw(make_view(None, now, "name"), "127.0.0.1:4000", "name", width, height)
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(drawn)
    text = capture.get()
    lines = text.splitlines()
    assert all(console.measure(line).maximum <= width for line in lines)
    assert "\x1b" not in text
    if names and width >= 60:
        assert "[red]x[/red]" in text
    if height >= 30:
        assert len(lines) <= height


@pytest.mark.parametrize("columns", [STREAM_COLUMNS, CONSUMER_COLUMNS])
def test_the_most_important_columns_stay(columns: list[object]) -> None:
    for width in range(8, 140):
        fitting = fit(columns, width)  # type: ignore[arg-type]
        assert [column for column, _ in fitting] == list(columns[: len(fitting)])
        assert sum(size for _, size in fitting) + 2 * (len(fitting) - 1) <= max(width, 1)
    assert len(fitting) == len(columns)


def test_numbers_are_short() -> None:
    assert [rate_text(each) for each in (None, 0, 0.25, 9.96, 12.4, 123456)] == [
        "-",
        "0",
        "0.2",
        "10.0",
        "12",
        "123,456",
    ]
    assert [size_text(each) for each in (0, 1023, 1536, 20 * 2**30)] == ["0 B", "1023 B", "1.5 KiB", "20 GiB"]
    assert [duration_text(each) for each in (None, 0.4, 61, 7300, 864000)] == ["-", "0s", "1m", "2h", "10d"]


def test_once_as_json_says_what_is_there(at_node: CommandLine, node: NodeProcess, stream: str) -> None:
    with blocking.connect(node.address) as client:
        made = client.create_partitioned(stream, 2)
        for number in range(10):
            made.partitions[number % 2].push(b"x" * 100)
        SavedIndexes(client, "billing").save(stream, {0: 2, 1: 5})
    view = at_node("top", "--once", "--json", "--interval", "0.2", "--prefix", stream).read(promised.TopView)
    assert [(each.stream, each.partitions, each.messages, each.bytes, each.lag) for each in view.streams] == [
        (stream, 2, 10, 1000, 3)
    ]
    assert [(each.client, each.partitions, each.lag, each.messages_per_s) for each in view.consumers] == [
        ("billing", 2, 3, 0.0)
    ]
    assert (view.node, view.schema_version, view.notes) == (node.address, 3, [])
    assert view.rates.messages_per_s == 0.0
    assert view.blocks is not None
    assert (view.blocks.chain, view.blocks.last) == ("blocks", None)
    assert view.connections is not None
    assert view.connections >= 1
    text = at_node("top", "--once", "--interval", "0.1", "--prefix", stream).text
    assert "billing" in text
    assert "no consumers" in at_node("top", "--once", "--interval", "0.1", "--prefix", f"{stream}?").text


def test_without_a_terminal_it_says_what_to_use(at_node: CommandLine) -> None:
    assert "use --once for one view as text, or --json" in at_node("top").failed(2)


def test_a_node_that_is_not_there(command: CommandLine) -> None:
    assert "127.0.0.1:1" in command("top", "--once", "--node", "127.0.0.1:1").failed(3)


def test_what_the_rules_hide_is_left_out_with_a_note(command: CommandLine, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "reading"\nwho = ["anonymous"]\nmay = ["read", "create", "write"]\non = ["open"]\n'
    )
    with NodeProcess(tmp_path / "data", arguments=("--access-rules", str(rules))) as node:
        with blocking.connect(node.address) as client:
            client.create("open").push(b"x")
        done = command("top", "--once", "--json", "--interval", "0.1", "--node", node.address)
        view = done.read(promised.TopView)
        assert [each.stream for each in view.streams] == ["open"]
        assert view.version is None
        assert [note.split(":")[0] for note in view.notes] == ["the node", "consumers"]
        assert "index" in view.notes[1]
        # Asking is no administrative act, and no refusal of anything else.
        lines = map(json.loads, (tmp_path / "data" / "audit.jsonl").read_text().splitlines())
        assert [line["request"] for line in lines if line["event"] == "admitted"] == ["stream_create"]


@pytest.mark.slow
def test_the_live_view_follows_a_node_and_leaves_the_terminal_as_it_was(node: NodeProcess, stream: str) -> None:
    with blocking.connect(node.address) as client:
        made = client.create(stream)
        made.push(b"x")
        with top_in_terminal(node, 110, 30, "--prefix", stream) as terminal:
            shown = terminal.wait_for(lambda lines: any(line.startswith(stream[:20]) for line in lines))
            assert shown[-1] == "q quit  s sort"
            assert len(shown) == 30
            assert "by rate" in " ".join(shown[:2])
            for _ in range(1_233):
                made.push(b"x")
            terminal.wait_for(lambda lines: "1,234" in "\n".join(lines))
            SavedIndexes(client, "late").save(stream, {0: 1})
            terminal.wait_for(lambda lines: any(line.startswith("late") and "1,233" in line for line in lines))
            terminal.press(b"s")
            terminal.wait_for(lambda lines: "by lag" in " ".join(lines[:2]))
            terminal.press(b"q")
            assert terminal.wait_end() == 0
            assert terminal.text.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))
            assert termios.tcgetattr(terminal.there) == terminal.before


def test_a_small_terminal_shows_what_matters_most(node: NodeProcess, stream: str) -> None:
    with blocking.connect(node.address) as client:
        client.create(stream).push(b"x")
    with top_in_terminal(node, 40, 16, "--prefix", stream[:10]) as terminal:
        shown = terminal.wait_for(lambda lines: any(line.startswith("stream ") for line in lines))
        assert len(shown) == 16
        assert all(len(line) <= 40 for line in shown)
        terminal.press(b"\x03")
        assert terminal.wait_end() == 130
        assert termios.tcgetattr(terminal.there) == terminal.before


@pytest.mark.slow
def test_a_node_that_goes_is_shown_as_gone_until_it_is_back(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        with blocking.connect(node.address) as client:
            client.create("orders").push(b"x")
        with top_in_terminal(node, 100, 24, "--timeout", "1") as terminal:
            terminal.wait_for(lambda lines: any(line.startswith("orders") for line in lines))
            node.kill()
            gone = terminal.wait_for(lambda lines: "is gone" in "\n".join(lines))
            assert any(line.startswith("orders") for line in gone), "what it was stays"
            node.start()
            terminal.wait_for(lambda lines: lines[1:] and "is gone" not in "\n".join(lines))
            terminal.process.terminate()
            assert terminal.wait_end() == 143
            assert termios.tcgetattr(terminal.there) == terminal.before


def test_json_goes_on_until_it_is_stopped(node: NodeProcess, stream: str) -> None:
    command = [sys.executable, "-m", "stream_node", "top", "--json", "--interval", "0.1", "--node", node.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        views = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert views[1]["now_us"] > views[0]["now_us"]
