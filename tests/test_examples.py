"""Every example runs against a real node in a child process, from any folder, and prints what it should."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stream_node.node.process import NodeProcess
from tests.support.pages import Reader

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
WITH_SPARK = {"plots.py", "spark_exactly_once.py"}
WITH_A_SCHEDULER = {"airflow_export.py", "dagster_export.py"}
"""Tested where the scheduler is installed, in tests/spark_export/exporter/test_scheduled.py."""
SVG = "{http://www.w3.org/2000/svg}"
WITHOUT_NODE = {"echo_node.py", "enrich_worker.py", "fork_tree.py"}
LINES_MAX = 56
RUN_TIMEOUT_S = 60.0
SPARK_TIMEOUT_S = 240.0
"""Where other work takes most of the machine, the start of Spark alone takes half a minute."""
IMPORTS = {"PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))}
"""The packages are found from any folder, also where this project is not installed."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data", environment={**IMPORTS, "STREAM_NODE_FORWARDING": "true"}) as process:
        yield process


def run_example(name: str, node: NodeProcess) -> list[str]:
    """The lines that it prints. It must succeed and have nothing to complain about."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        cwd=node.data_dir.parent,
        env={**os.environ, **IMPORTS, "STREAM_NODE_ADDRESS": node.address},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S if name in WITH_SPARK else RUN_TIMEOUT_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in WITH_SPARK | WITH_A_SCHEDULER])
def test_an_example_runs_on_a_fresh_node(name: str, node: NodeProcess) -> None:
    assert run_example(name, node)


@pytest.mark.spark
@pytest.mark.soak
def test_the_plots_have_a_point_for_each_row_of_gold(node: NodeProcess) -> None:
    """Method: the points in each file are counted, and compared with the number that the example prints."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    lines = run_example("plots.py", node)
    assert [line.partition(":")[0] for line in lines] == ["rates.svg", "latency.svg"]
    for line in lines:
        name, points = re.findall(r"([\w.]+): (\d+) points", line)[0]
        plot = ElementTree.parse(node.data_dir.parent / name)
        # matplotlib puts the markers of a line into one group, and refers to the marker once for each point.
        drawn = [group for group in plot.iter(f"{SVG}g") if group.get("id", "").startswith("line2d")]
        assert max(len(list(group.iter(f"{SVG}use"))) for group in drawn) == int(points) > 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_what_it_is_for(name: str) -> None:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < LINES_MAX
    docstring = ast.get_docstring(ast.parse(text)) or ""
    node = "" if name in WITHOUT_NODE else "STREAM_NODE_ADDRESS=127.0.0.1:4000 "
    assert f"{node}python examples/{name}" in docstring.splitlines()


def test_a_node_of_its_own_answers_and_its_worker_is_there_again_after_a_crash(node: NodeProcess) -> None:
    assert run_example("echo_node.py", node) == [
        "echo: hello",
        "shout: HELLO",
        "shout: the worker failed; it is restarted",
        "shout: STILL HERE",
    ]


def test_who_is_away_in_the_chat_gets_what_it_missed(node: NodeProcess) -> None:
    """Method: two runs, of which the second uses the addresses of the first."""
    expected = ["alice heard [b'there is a tunnel soon']", "carol heard [b'we meet at five', b'bring the plan']"]
    for _ in range(2):
        lines = [line for line in run_example("chat.py", node) if " heard " in line]
        assert lines == expected


def test_the_worker_that_enriches_puts_each_order_into_the_other_stream(node: NodeProcess) -> None:
    """Beside it, tests/stream_node/hosting/test_enriching.py kills its node again and again."""
    assert run_example("enrich_worker.py", node) == [
        '{"what": "tea", "count": 2, "price": 6}',
        '{"rejected": "?", "why": "JSONDecodeError"}',
        '{"what": "coffee", "count": 1, "price": 4}',
    ]


def test_the_programs_of_the_page_of_own_workers_print_what_it_shows(tmp_path: Path) -> None:
    """The programs are those of nodes of one's own; those beside the streams are in tests/stream_node/hosting."""
    page = (ROOT / "docs" / "own-workers.md").read_text(encoding="utf-8").partition("\n## On a running node")[0]
    assert page.count("```python") == 3
    with Reader(tmp_path) as reader:
        reader.read(page)


def test_of_two_forks_the_one_that_is_committed_later_replaces_the_other(node: NodeProcess) -> None:
    """Method: the three trees that the example draws are compared with where each block must be."""
    lines = [line.strip("│├└─ ") for line in run_example("fork_tree.py", node)]
    drawn = [line.partition(" ")[::2] for line in lines if line[:2] in {"a0", "a1", "a2", "a3", "b2", "b3", "b4"}]
    trees = [dict(drawn[at : at + 7]) for at in (0, 7, 14)]
    trunk = {"a0": "on disk", "a1": "on disk"}
    fork_a, fork_b = ("a2", "a3"), ("b2", "b3", "b4")
    for tree, a, b in zip(trees, ("on disk", "in memory", "dropped"), ("in memory", "on disk", "on disk"), strict=True):
        assert tree == trunk | dict.fromkeys(fork_a, a) | dict.fromkeys(fork_b, b)
    assert "To undo: a3, a2. To apply: b2, b3, b4." in lines


def test_the_page_of_the_block_manager_shows_what_its_example_prints(node: NodeProcess) -> None:
    page = (ROOT / "docs" / "block-manager.md").read_text(encoding="utf-8")
    shown = page.split("```text\n")[1].split("```")[0]
    assert "\n".join(run_example("fork_tree.py", node)).startswith(shown)


def test_the_programs_of_the_page_of_the_block_manager_run(tmp_path: Path) -> None:
    """Method: each program of the page runs in a folder of its own; the last one is that of the validator, and prints
    what the page shows below it."""
    page = (ROOT / "docs" / "block-manager.md").read_text(encoding="utf-8")
    programs = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    printed = ""
    for program in programs:
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path,
            env={**os.environ, **IMPORTS},
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert (run.returncode, run.stderr) == (0, "")
        printed = run.stdout
    assert len(programs) == 2
    assert printed == page.split("```text\n")[-1].split("```")[0]


def test_the_indexer_undoes_after_a_restart_what_a_fork_replaces(node: NodeProcess) -> None:
    first, light, heavy = (repr(name.rjust(32)) for name in (b"first", b"light", b"heavy"))
    assert run_example("ethereum.py", node) == [
        "2 blocks were new",
        f"undo [] do [{first}]",
        f"undo [] do [{light}]",
        "chain [2, 1]",
        "1 blocks were new",
        f"undo [{light}] do [{heavy}]",
        "chain [2, 1]",
    ]


def test_the_consumer_resumes_behind_what_it_has_read(node: NodeProcess) -> None:
    for first, last in ((0, 999), (1_000, 1_999)):
        assert run_example("publisher.py", node) == [f"1000 messages stored, the last at index {last}"]
        assert run_example("consumer.py", node) == [
            f"resuming at index {first}",
            f"1000 messages of 10890 bytes, the next one is {last + 1}",
        ]


def test_a_key_keeps_its_partition_and_its_order(node: NodeProcess) -> None:
    runs = [run_example("partitioned.py", node) for _ in range(2)]
    assert [len(lines) for lines in runs] == [12, 12]
    assert {line.split()[1] for line in runs[0]} == {"0", "1", "2"}
    for customer in ("ada", "bert", "cleo", "eva"):
        own = [line.split() for line in runs[0] + runs[1] if line.endswith(f" of {customer}")]
        assert len({words[1] for words in own}) == 1, f"{customer} is in more than one partition"
        assert [words[5] for words in own] == ["0", "1", "2"] * 2
        indexes = [int(words[3].rstrip(":")) for words in own]
        assert indexes == sorted(set(indexes))


def test_the_blocks_of_another_chain_are_not_called_durable(node: NodeProcess, tmp_path: Path) -> None:
    """The node has blocks of the numbers that the example publishes; the example ends with both roots."""
    from block_node.blocks.generator import ChainGenerator, SigningKeys
    from block_node.client import OutgoingBlock
    from block_node.client.blocking import connect

    there = ChainGenerator(SigningKeys.generate(1), seed=99).next_block()
    with connect(node.address) as client, client.publisher() as publisher:
        publisher.send(OutgoingBlock.from_items(there.items))
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "blocks.py")],
        env={**os.environ, **IMPORTS, "STREAM_NODE_ADDRESS": node.address},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert there.root.hex() in result.stderr
