"""Goal: what is wrong with the settings of a pipeline is told in one line. Method: each mistake once, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.pipeline.outputs import RANGES_MAX, Manifest, Touched, _ends_of, load_manifest, ranges_of
from spark_export.pipeline.silver_cardinal import Topics
from spark_export.pipeline.step import Settings
from spark_export.tables.errors import ExportError, TableRefused
from stream_node.cli.exports.pipeline import read_starts
from stream_node.cli.values import UsageError

HASH = "12" * 32


@pytest.mark.parametrize(
    ("pattern", "starts", "says"),
    [
        ("a", ["0x12"], "64 hex digits"),
        (None, [HASH], "give it too"),
        ("(a|b)-.*", [HASH], "write it as CHAIN=HASH"),
        ("a", [f"a={HASH}"], "write it as HASH"),
        ("(a)", [f"a={HASH}", f"a={HASH}"], "already"),
    ],
)
def test_a_wrong_start_is_told(pattern: str | None, starts: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_starts(starts, None if pattern is None else Topics(pattern))


def test_starts_of_several_chains() -> None:
    assert read_starts([f"a=0x{HASH}", f"b={HASH}"], Topics("(a|b)-.*")) == dict.fromkeys("ab", bytes.fromhex(HASH))
    assert read_starts([HASH], Topics("a")) == {"a": bytes.fromhex(HASH)}
    with pytest.raises(ValueError, match="no regular expression"):
        Topics("(")


def test_a_setting_without_effect_is_told() -> None:
    """A misspelt chain, hash or expression is told until the export has it."""
    start = bytes.fromhex(HASH)
    settings = Settings(Topics("(one|two)-.*"), {"one": start, "two": start})
    state = Manifest("id", settings.named())
    assert Settings().notes(state) == ()
    (line,) = settings.notes(state)
    assert line.startswith("--cardinal (one|two)-.*: no stream of the export")
    unknown_hash, unknown_chain = settings.notes(Manifest("id", {}, chains={"one": None}))
    assert unknown_hash.startswith(f"--start one={HASH}: no complete block of the chain")
    assert unknown_chain.endswith("the export has no block of the chain two yet, but of one")
    both = Manifest("id", {}, chains={"one": None, "two": [7, HASH]}, rooted=["one", "two"])
    assert settings.notes(both) == ()


def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    """Goal: the user reads which folder to build anew, whatever the file of the state holds. Method: such files."""
    assert load_manifest(tmp_path) is None
    (tmp_path / "latest").symlink_to("builds/1")
    with pytest.raises(TableRefused, match="earlier version"):
        load_manifest(tmp_path)
    (tmp_path / "pipeline.json").write_text('{"format": 99}')
    with pytest.raises(TableRefused, match="another version"):
        load_manifest(tmp_path)
    for text in ("{", "{}", "[]", "null", '{"format": 3}', '{"format": 3, "export": "", "settings": {}, "more": 1}'):
        (tmp_path / "pipeline.json").write_text(text)
        with pytest.raises(ExportError, match="damaged"):
            load_manifest(tmp_path)


def test_touched_rows_as_a_condition_of_deltalake() -> None:
    touched = Touched.of("number", {"it's": {1, 2, 3, 7}, "none": set()})
    text = "(chain = 'it''s' AND number >= 1 AND number <= 3) OR (chain = 'it''s' AND number >= 7 AND number <= 7)"
    assert touched.predicate() == text
    assert [touched.overlaps(each) for each in ((4, 6), (0, 1), (7, 9), None)] == [False, True, True, True]
    minutes = Touched.of("minute", {None: {60_000_000, 120_000_000}}, 60_000_000)
    assert minutes.predicate() == (
        "(minute >= '1970-01-01T00:01:00.000000Z' AND minute <= '1970-01-01T00:02:00.000000Z')"
    )
    assert Touched.of("number", {}).predicate() == "false"


def test_many_ranges_are_widened() -> None:
    """A condition stays small; the ranges still have every value."""
    values = [each * 10 for each in range(5_000)]
    ranges = ranges_of(values, 1)
    assert len(ranges) <= RANGES_MAX
    assert all(any(first <= each <= last for first, last in ranges) for each in values)


def test_the_footer_says_which_rows_a_file_has(tmp_path: Path) -> None:
    """Goal: a step does not read the files that it does not touch. Method: a file with a text, whose statistics the log
    lacks."""
    table = pa.table({"stream": ["a", "b"], "number": pa.array([4, 9], pa.int64())})
    pq.write_table(table, tmp_path / "f.parquet")
    assert _ends_of(tmp_path / "f.parquet", "number") == (4, 9)
    times = pa.array([5_000_000, 7_000_000], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"stream": ["a", "b"], "timestamp": times}), tmp_path / "t.parquet")
    ends = _ends_of(tmp_path / "t.parquet", "timestamp")
    touched = [Touched("timestamp", [(None, us, us)]).overlaps(ends) for us in (4_999_999, 6_000_000, 7_000_001)]
    assert touched == [False, True, False]
