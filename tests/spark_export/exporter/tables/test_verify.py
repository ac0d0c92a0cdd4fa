"""Goal: `verify` finds whatever could go wrong with a table, and tells what others did to it as information.

Method: a sound export, damaged in one way at a time; the damage must be named.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq

from spark_export import table_files
from spark_export.exporter.node_side import Selection
from spark_export.exporter.verify import verify
from spark_export.tables.errors import TableDamaged
from spark_export.tables.files import FOOTER_MARK
from tests.spark_export.exporter.export_process import export_child
from tests.spark_export.exporter.export_world import World


def files_of(world: World) -> list[Path]:
    return sorted((world.folder / "messages").resolve().rglob("*.parquet"))


def exported(world: World) -> World:
    for _ in range(2):
        world.push(50)
        world.run()
    return world


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip_page(file: Path) -> None:
    """In the last byte of the first page, a dictionary."""
    flip(file, pq.read_metadata(file).row_group(0).column(0).data_page_offset - 1)


def flip_footer(file: Path, bit: int = 1) -> None:
    """In the name of a column, which readers then miss."""
    content = file.read_bytes()
    flip(file, content.index(b"timestamp", content.index(FOOTER_MARK)), bit)


def flip_old_footer(file: Path) -> None:
    """In the name of a column, which then is no text, in a file without a checksum of its footer."""
    flip_footer(file, 0x80)
    file.write_bytes(file.read_bytes().replace(FOOTER_MARK, bytes(len(FOOTER_MARK))))


def flip(file: Path, place: int, bit: int = 1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= bit
    file.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing"),
    "cut": (cut, "were written"),
    "page": (flip_page, "cannot be read"),
    "footer": (flip_footer, "cannot be read"),
    "old-footer": (flip_old_footer, "cannot be read"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_file_is_named(each_format: World, what: str) -> None:
    world = exported(each_format)
    harm, said = DAMAGE[what]
    file = files_of(world)[0]
    harm(file)
    verdict = world.verify(contents=False)
    assert len(verdict.problems) == 1
    assert file.name in verdict.problems[0]
    assert said in verdict.problems[0]
    done = export_child(world, "verify")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)


def test_a_file_that_was_copied_into_the_folder_is_found(world: World) -> None:
    """A reader of Parquet reads it, and has its rows twice."""
    file = files_of(exported(world))[0]
    shutil.copy(file, file.with_name("copy.parquet"))
    problems = world.verify(contents=False).problems
    assert len(problems) == 2
    assert "25 indexes are there twice, the first from 0 to 24" in problems[0]


@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_rows_that_are_not_the_nodes_messages_are_found(world: World, table_format: str) -> None:
    """Goal: contents are compared, not only indexes. Method: a file with the same rows and other bytes. deltalake does
    not read a file of another size than its log says."""
    pytest.importorskip({"parquet": "pyarrow", "iceberg": "pyiceberg"}[table_format])
    world.settings = replace(world.settings, format=table_format)
    exported(world)
    assert world.verify().compared == 100
    file = files_of(world)[0]
    rows = pq.ParquetFile(file).read()
    data = pa.array([b"x" + each[1:] for each in rows.column("data").to_pylist()], pa.binary())
    rows = rows.set_column(rows.schema.get_field_index("data"), rows.schema.field("data"), pa.chunked_array([data]))
    pq.write_table(rows, file)
    reader = world.settings.node_side()
    ends = world.settings.node_side().list_ends(Selection())
    problems = verify(world.log(), ends=ends, read=reader.read, checksums=False).problems
    assert problems
    assert all("are not the messages of the node" in each for each in problems)


@pytest.mark.parametrize("harm", [flip_page, flip_footer])
def test_a_compaction_reads_no_damaged_file(world: World, harm: Callable[[Path], None]) -> None:
    """The merged file would have checksums of its own, and `verify` would call it sound."""
    file = files_of(exported(world))[0]
    harm(file)
    before = {path: path.read_bytes() for path in files_of(world)}
    with pytest.raises(TableDamaged, match=file.name):
        world.compact()
    assert {path: path.read_bytes() for path in files_of(world)} == before
    assert list(world.folder.glob("staging/*")) == []


def test_a_compaction_changes_no_row_and_keeps_the_old_files_for_readers(each_format: World) -> None:
    world = exported(each_format)
    world.push(3, partitions=3)
    world.run()
    before, old = world.rows(), files_of(world)
    assert world.compact().merged == 3
    assert world.rows() == before == world.stored()
    assert all(path.exists() for path in old)
    world.assert_whole()
    world.push(5)
    world.run()
    kept = world.compact(files_min=9, keep_s=0.0)
    assert kept.expired >= 3
    assert not any(path.exists() for path in old)
    world.assert_whole()
    assert world.compact(files_min=9).merged == 0


def test_flipped_bits_anywhere_are_found_or_harmless(world: World) -> None:
    """Goal: the checksums of pages and of the footer find what a disk changes. Method: one bit of one file, at many
    places; and a filter on all rows, which believes the footer's statistics.

    A bit of a page's header that nothing reads can be changed without harm.
    """
    world.push(500, partitions=1)
    world.run()
    (file,), seeded = files_of(world), random.Random(5)
    sound, rows = file.read_bytes(), world.rows()
    for _ in range(60):
        changed = bytearray(sound)
        changed[seeded.randrange(len(sound))] ^= 1 << seeded.randrange(8)
        file.write_bytes(changed)
        if world.verify(contents=False).sound:
            assert world.rows() == rows
            assert dataset.dataset(file).count_rows(filter=dataset.field("index") < 500) == 500
    file.write_bytes(sound)
    world.assert_whole()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_what_others_removed_is_information(world: World, table_format: str) -> None:
    from tests.spark_export.exporter.export_world import open_iceberg

    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[table_format])
    world.settings = replace(world.settings, format=table_format)
    exported(world)
    if table_format == "delta":
        pytest.importorskip("deltalake").DeltaTable(str(world.folder / "messages")).delete('"index" < 10')
    else:
        table = open_iceberg(world.folder)
        table.delete()
        table.catalog.close()
    verdict = world.verify()
    assert (verdict.problems, verdict.removed) == ((), 20 if table_format == "delta" else 100)
    assert any("exported rows were removed" in each for each in verdict.notes)
    assert any("delete" in each.lower() for each in verdict.notes)
    world.push(4)
    assert world.run().rows == 4
    assert world.verify().sound


def test_an_export_that_goes_on_meanwhile_is_no_damage(each_format: World) -> None:
    """Goal: a table that an exporter adds to is sound. Method: a run between the ends of the node and the state, and
    one between the state and the rows."""
    world = exported(each_format)
    reader = world.settings.node_side()
    ends = world.settings.node_side().list_ends(Selection())

    def add(*_: int) -> None:
        world.push(10)
        world.run()

    add()
    verdict = verify(world.log(), ends=ends, read=reader.read, on_file=add)
    assert (verdict.problems, verdict.notes, verdict.removed, verdict.compared) == ((), (), 0, 100)
    assert verdict.rows == len(world.stored()) > 110


def test_the_exports_own_upkeep_is_no_commit_of_others(each_format: World) -> None:
    """Goal: `verify` tells what others did, and nothing else. Method: a compaction of the export's own; and its files
    are opened by a reader that knows no addresses."""
    world = exported(each_format)
    assert world.compact(keep_s=0).merged > 0
    assert world.verify(contents=False).notes == ()
    assert sum(pq.ParquetFile(each).metadata.num_rows for each in table_files(world.folder)) == 100
