"""Goal: increments say of a chain that no honest producer makes what a rebuild says.

Method: light blocks without a connection to the chain, and branches that win although they are shorter, with a small
window, so that increments decide without most of the chain.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cardinal_streams.message.messages import decode, encode
from cardinal_streams.message.types import Batch
from spark_export.pipeline.canon import BlockLink, mark_chain
from spark_export.pipeline.increment import Settings, run_pipeline
from spark_export.pipeline.jobs import main
from spark_export.pipeline.tables import known_blocks
from spark_export.pipeline.topics import Topics
from tests.spark_export.pipeline.lake import BASE_US, Lake, Row, all_rows, read_rows
from tests.spark_export.pipeline.makers import name_of, odd_chain

pytestmark = pytest.mark.slow

CARDINAL = Settings(Topics("odd-.*"), keep_s=0.0)
ODD_SEED = 3


def test_a_shorter_heavier_branch_makes_lost_blocks_wait_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an increment says of a block without a parent what a rebuild says. Method: a chain of ten blocks that is
    settled at block 6 passes a lone block at 9; then a branch wins that ends at 8."""
    monkeypatch.setattr(known_blocks, "WINDOW", 4)
    chain = [
        Batch(name_of(f"odd {at}"), at, name_of(f"odd {at - 1}") if at > 1 else bytes(32), at) for at in range(1, 11)
    ]
    lone = Batch(name_of("lone"), 9, name_of("never comes"), 5)
    fork = [Batch(name_of("fork 7"), 7, name_of("odd 6"), 7), Batch(name_of("fork 8"), 8, name_of("fork 7"), 99)]
    lake, index = Lake(tmp_path / "lake"), 0
    for part in (chain, [lone], fork):
        records = [encode(each) for each in part]
        lake.add_run(
            {"odd-blocks": [(0, index + at, index + at, each.key, [], each.value) for at, each in enumerate(records)]}
        )
        index += len(part)
        run_pipeline(lake.folder, tmp_path / "out", CARDINAL)
    rebuilt = run_pipeline(lake.folder, tmp_path / "anew", CARDINAL, rebuild=True)
    states = {row["hash"]: row["state"] for row in read_rows(tmp_path / "out" / "latest", "silver/batches")}
    assert (states[lone.hash], states[fork[1].hash]) == ("waiting", "canonical")
    assert all_rows(tmp_path / "out" / "latest") == all_rows(rebuilt.folder)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
@example(ODD_SEED)
def test_small_increments_of_an_odd_chain(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Goal: the states that increments decide without most of the chain. Method: a few blocks at a time, compared with
    `mark_chain` over all blocks so far. The seed in the example makes lost blocks wait again."""
    folder, randomness = tmp_path_factory.mktemp("odd"), random.Random(seed)
    records = odd_chain(randomness)
    lake, index, links = Lake(folder / "lake"), 0, dict[bytes, BlockLink]()
    patch = pytest.MonkeyPatch()
    patch.setattr(known_blocks, "WINDOW", 8)
    while index < len(records):
        part = records[index : index + randomness.choice((1, 1, 4, 13))]
        rows: list[Row] = [(0, index + at, index + at, each.key, [], each.value) for at, each in enumerate(part)]
        lake.add_run({"odd-blocks": rows})
        for _, _, seconds, key, _, value in rows:
            batch = decode(key or b"", value)
            assert isinstance(batch, Batch)
            stored_us = BASE_US + seconds * 1_000_000
            link = BlockLink(batch.hash, batch.parent, batch.number, batch.weight, stored_us)
            links.setdefault(batch.hash, link)
        index += len(part)
        run_pipeline(lake.folder, folder / "out", CARDINAL)
        found = {row["hash"]: row["state"] for row in read_rows(folder / "out" / "latest", "silver/batches")}
        assert found == {hash_: mark.state for hash_, mark in mark_chain(links.values()).items()}
    patch.undo()
    shutil.rmtree(folder)


def test_a_start_counts_for_its_chain_alone(tmp_path: Path) -> None:
    """Goal: the start of one chain does not make the blocks of another one wait. Method: two chains of two parts each;
    the smaller part of chain `one` is chosen by a start, with the command."""

    def part(chain: str, first: int, count: int) -> list[Batch]:
        hashes = [name_of(f"{chain} {first + at}") for at in range(count + 1)]
        return [Batch(hashes[at + 1], first + at + 1, hashes[at], first + at) for at in range(count)]

    lake = Lake(tmp_path / "lake")
    for chain in ("one", "two"):
        records = [encode(each) for each in [*part(chain, 1, 4), *part(chain, 100, 2)]]
        lake.add_run({f"{chain}-blocks": [(0, at, at, each.key, [], each.value) for at, each in enumerate(records)]})
    start = part("one", 100, 2)[0].hash
    command = [str(lake.folder), str(tmp_path / "out"), "--cardinal", "(one|two)-.*", "--start", f"one={start.hex()}"]
    assert main(command) == 0
    rows = read_rows(tmp_path / "out" / "latest", "silver/batches")
    canonical = sorted((row["chain"], row["number"]) for row in rows if row["state"] == "canonical")
    assert canonical == [("one", 101), ("one", 102), *(("two", number) for number in range(2, 6))]


def test_a_start_that_was_never_seen_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a misspelt chain, hash or expression is told until the export has it, also by a run with nothing new."""
    lake = Lake(tmp_path / "lake")
    first, second = (Batch(name_of(str(at)), at, name_of(str(at - 1)), at) for at in (5, 6))

    def add(stream: str, index: int, batch: Batch) -> None:
        record = encode(batch)
        lake.add_run({stream: [(0, index, index, record.key, [], record.value)]})

    def told(*given: str) -> list[str]:
        assert main([str(lake.folder), str(tmp_path / "out"), "--cardinal", "(one|two)-.*", *given]) == 0
        return capsys.readouterr().err.splitlines()

    add("three-blocks", 0, first)
    (line,) = told()
    assert line.startswith("warning: --cardinal (one|two)-.*: no stream of the export")
    add("one-blocks", 0, first)
    assert told() == []
    starts = [f"--start=one={second.hash.hex()}", f"--start=two={second.hash.hex()}"]
    for more in (["--rebuild"], []):
        unknown_hash, unknown_chain = told(*starts, *more)
        assert unknown_hash.startswith(f"warning: --start one={second.hash.hex()}: no complete block of the chain")
        assert unknown_chain.endswith("the export has no block of the chain two yet, but of one")
    add("one-blocks", 1, second)
    (line,) = told(*starts)
    assert "--start two=" in line
    add("two-blocks", 0, second)
    assert told(*starts) == told(*starts) == []
