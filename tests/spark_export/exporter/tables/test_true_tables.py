"""Goal: no command makes a wrong table, or a sound one out of a damaged one, whatever somebody did to the folder.

Method: exports are damaged in one way at a time: bytes, links, folders, ledgers. The command must refuse in one line or
mend, and a table that was refused is byte for byte as before.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.errors import ExportError, ExportMismatch
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_crashes import export_child

LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}


def contents(folder: Path) -> dict[str, bytes]:
    """Every Parquet file and link below the folder, by its relative path."""
    found = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(root, name)
            if path.is_symlink():
                found[str(path.relative_to(folder))] = os.readlink(path).encode()
            elif name.endswith(".parquet"):
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)


def two_runs(world: World, table_format: str = "parquet") -> World:
    if table_format in LIBRARIES:
        pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    world.settings = replace(world.settings, format=table_format)
    for _ in range(2):
        world.push(50)
        world.run()
    return world


@pytest.fixture(params=["parquet", "delta", "iceberg"])
def exported(request: pytest.FixtureRequest, world: World) -> World:
    return two_runs(world, request.param)


@pytest.fixture
def lake(world: World) -> World:
    return two_runs(world)


def data_files(world: World) -> list[Path]:
    return sorted((world.folder / "messages").resolve().rglob("*.parquet"))


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-10])])
def test_a_compaction_reads_no_damaged_file(exported: World, damage: Callable[[Path], object]) -> None:
    """The merged file would have a checksum of its own, and `verify` would call it sound."""
    file = data_files(exported)[0]
    damage(file)
    before = contents(exported.folder)
    done = export_child(exported, "compact")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert file.name in line
    assert "stream-node export repair" in line
    assert contents(exported.folder) == before
    assert not exported.verify().sound


def test_a_compaction_refuses_an_older_ledger(exported: World, tmp_path: Path) -> None:
    """It would leave out the runs that the ledger does not know."""
    shutil.copy(exported.folder / "ledger.sqlite", tmp_path / "kept")
    exported.push(50)
    exported.run()
    shutil.copy(tmp_path / "kept", exported.folder / "ledger.sqlite")
    before = contents(exported.folder)
    done = export_child(exported, "compact")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the ledger was put back to an earlier state" in line
    assert contents(exported.folder) == before


def test_a_ledger_of_before_a_compaction_is_refused(exported: World, tmp_path: Path) -> None:
    shutil.copy(exported.folder / "ledger.sqlite", tmp_path / "kept")
    assert exported.compact().generation == 2
    shutil.copy(tmp_path / "kept", exported.folder / "ledger.sqlite")
    before = contents(exported.folder)
    for command in ("run", "compact"):
        done = export_child(exported, command, None, exported.settings.format)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "the ledger was put back to an earlier state" in line
    assert contents(exported.folder) == before


def test_a_lost_link_is_made_anew(lake: World) -> None:
    """Before, the next run began an empty generation: the table had only the new rows."""
    (lake.folder / "messages").unlink()
    lake.push(5)
    assert lake.run().rows == 5
    lake.assert_whole()
    lake.compact()
    (lake.folder / "messages").unlink()
    assert "is missing" in export_child(lake, "verify").stderr
    lake.run()
    lake.assert_whole()


def test_a_link_that_was_put_back_is_turned_to_the_current_generation(lake: World) -> None:
    old = os.readlink(lake.folder / "messages")
    lake.compact()
    (lake.folder / "messages").unlink()
    (lake.folder / "messages").symlink_to(old)
    lake.push(5)
    lake.run()
    lake.assert_whole()


def lose_generation(world: World) -> None:
    shutil.rmtree(world.folder / "generations" / "000001")


def lose_link_and_file(world: World) -> None:
    (world.folder / "messages").unlink()
    next((world.folder / "generations").rglob("*.parquet")).unlink()


def lose_link_and_generations(world: World) -> None:
    (world.folder / "messages").unlink()
    shutil.rmtree(world.folder / "generations")


def copy_with_links_followed(world: World) -> None:
    copy = world.folder.with_name("copy")
    shutil.copytree(world.folder, copy, symlinks=False)
    shutil.rmtree(world.folder)
    copy.rename(world.folder)


def make_a_file_of_the_link(world: World) -> None:
    (world.folder / "messages").unlink()
    (world.folder / "messages").write_bytes(b"generations/000001")


def lead_the_link_elsewhere(world: World) -> None:
    (world.folder / "messages").unlink()
    (world.folder / "messages").symlink_to(world.folder.parent)


HARM: dict[Callable[[World], None], tuple[str, bool]] = {
    lose_generation: ("generations/000001", True),
    lose_link_and_file: ("generations/000001 lacks 1 of 2 files", True),
    lose_link_and_generations: ("generations/000001 lacks 2 of 2 files", True),
    copy_with_links_followed: ("is a folder and not a link", True),
    make_a_file_of_the_link: ("is a file and not a link", True),
    lead_the_link_elsewhere: ("leads out of", False),
}
"""What was done to a folder: a part of the line that refuses it, or False where the next run mends it."""


@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__)
def test_a_folder_with_a_lost_part_is_told_in_one_line_and_never_emptied(
    lake: World, harm: Callable[[World], None]
) -> None:
    harm(lake)
    said, refused = HARM[harm]
    before = contents(lake.folder)
    lake.push(5)
    checked = export_child(lake, "verify")
    assert (checked.returncode, "Traceback" in checked.stderr) == (1, False)
    for command in ("run", "compact"):
        done = export_child(lake, command)
        if refused:
            assert done.returncode == 1
            (line,) = done.stderr.splitlines()
            assert said in line
            assert contents(lake.folder) == before
        else:
            assert done.returncode == 0, done.stderr
    if not refused:
        lake.assert_whole()


def test_a_copy_with_its_links_followed_is_mended_as_the_line_says(lake: World) -> None:
    copy_with_links_followed(lake)
    (lake.folder / "messages").rename(lake.folder / "old")
    lake.push(5)
    lake.run()
    lake.assert_whole()


@pytest.mark.parametrize("table_format", LIBRARIES)
def test_a_log_that_is_gone_is_refused(world: World, table_format: str) -> None:
    """Before, the next run began an empty table."""
    two_runs(world, table_format)
    gone = {"delta": "messages/_delta_log", "iceberg": "catalog.sqlite"}[table_format]
    kept = world.folder.with_name("kept")
    (world.folder / gone).rename(kept)
    world.push(5)
    for command in ("run", "compact"):
        done = export_child(world, command, None, table_format)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "is missing" in line
    assert export_child(world, "verify").returncode == 1
    # A run that was refused left nothing that keeps the lost part from being put back.
    if (world.folder / gone).is_dir():
        shutil.rmtree(world.folder / gone)
    kept.replace(world.folder / gone)
    assert world.run().rows == 5
    assert world.verify().problems == ()


def test_a_delta_table_that_was_put_back_is_refused(world: World) -> None:
    two_runs(world, "delta")
    (world.folder / "messages" / "_delta_log" / "00000000000000000002.json").unlink()
    world.push(5)
    with pytest.raises(ExportMismatch, match="the table was put back"):
        world.run()


def test_missing_staging_and_strange_files_beside_the_generations_disturb_nothing(lake: World) -> None:
    (lake.folder / "staging").rmdir()
    (lake.folder / "generations" / ".DS_Store").write_bytes(b"x")
    (lake.folder / "generations" / "notes").mkdir()
    lake.compact()
    lake.push(5)
    (lake.folder / "staging").rmdir()
    lake.run()
    lake.assert_whole()


def test_a_new_ledger_beside_generations_is_refused(lake: World) -> None:
    (lake.folder / "ledger.sqlite").unlink()
    (lake.folder / "messages").unlink()
    with pytest.raises(ExportError, match=r"ledger\.sqlite is missing"):
        lake.run()
