"""The recorder misses nothing that a program does to files, and the disks rebuilt from it are those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.power.disks import POLICIES, Disks
from tests.power.recording import Event, Recording, need_recorder, read_trace, write_trace
from tests.power.states import recorded, scratch

PROGRAM = """
import mmap, os, shutil, sqlite3, sys
os.chdir(sys.argv[1])
os.makedirs("a/b/c")
with open("a/plain", "wb") as file:
    file.write(b"x" * 9000)
    file.seek(100)
    file.write(b"y")
with open("a/plain", "ab") as file:
    file.write(b"end")
descriptor = os.open("a/b/vector", os.O_RDWR | os.O_CREAT)
os.writev(descriptor, [b"one", b"two", b""])
os.pwrite(descriptor, b"three", 600)
os.pwritev(descriptor, [b"four", b"five"], 3)
os.ftruncate(descriptor, 601)
os.posix_fallocate(descriptor, 0, 5000)
os.close(descriptor)
os.truncate("a/plain", 8000)
open("a/plain", "wb").close()
shutil.copyfile("a/b/vector", "a/copied")
os.link("a/copied", "a/b/linked")
os.symlink("b/linked", "a/pointer")
folder = os.open("a", os.O_RDONLY)
os.rename("copied", "b/moved", src_dir_fd=folder, dst_dir_fd=folder)
os.mkdir("d", dir_fd=folder)
os.unlink("plain", dir_fd=folder)
os.close(folder)
os.replace("a/b", "a/e")
with open("a/e/vector", "r+b") as file:
    file.write(b"after the folder has another name")
open("a/new", "x").close()
os.replace("a/new", "a/e/vector")
shutil.rmtree("a/e/c")
os.rmdir("a/d")
child = os.fork()
if not child:
    with open("a/of the child", "wb") as file:
        file.write(b"text")
    os._exit(0)
os.waitpid(child, 0)
connection = sqlite3.connect("a/database")
connection.execute("PRAGMA journal_mode=wal")
connection.execute("CREATE TABLE t (a)")
connection.executemany("INSERT INTO t VALUES (?)", [(bytes(5000),)] * 20)
connection.commit()
os._exit(0)
"""

STEPS = """
import os, sys
def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
os.chdir(sys.argv[1])
os.mkdir("kept")
sync(".")
with open("kept/file", "wb") as file:
    file.write(b"a" * 2048)
sync("kept/file")
sync("kept")
with open("kept/file", "r+b") as file:
    file.write(b"b" * 2048)
os.rename("kept/file", "kept/other")
os.mkdir("lost")
open("lost/file", "x").close()
sync("lost/file")
sync("lost")
"""


def run(tmp_path: Path, program: str) -> list[Event]:
    need_recorder()
    (tmp_path / "program.py").write_text(program)
    return recorded(lambda recording: print(recording.run(tmp_path / "program.py", recording.root)))


def test_nothing_is_missed(tmp_path: Path) -> None:
    """`recorded` rebuilds the disk with nothing lost, and compares it with the real one."""
    events = run(tmp_path, PROGRAM)
    assert len({event.kind for event in events}) == 10
    assert list(read_trace(write_trace(events), "")) == events


@pytest.mark.parametrize(
    "program",
    [
        "import os, sys; os.open(sys.argv[1] + '/f', os.O_WRONLY | os.O_CREAT | os.O_SYNC)",
        "import mmap, os, sys; f = open(sys.argv[1] + '/f', 'w+b'); f.truncate(9); mmap.mmap(f.fileno(), 9)",
        "import os, sys; r = sys.argv[1]; open(r + '/../f', 'w').close(); os.rename(r + '/../f', r + '/f')",
    ],
)
def test_what_it_would_not_see_ends_the_program(tmp_path: Path, program: str) -> None:
    need_recorder()
    (tmp_path / "program.py").write_text(program)
    with scratch() as folder:
        recording = Recording(folder)
        recording.run(tmp_path / "program.py", recording.root, expect=-6)


def test_what_was_synced_is_kept_and_the_rest_may_be(tmp_path: Path) -> None:
    """Goal: the model keeps no more and no less than it says. Method: a few steps, and every policy many times."""
    events = run(tmp_path, STEPS)
    disks = Disks(events)
    found: dict[tuple[float | None, float], set[tuple[tuple[str, ...], bytes]]] = {}
    for seed in range(60 * len(POLICIES)):
        with scratch() as folder:
            policy = disks.write(folder, len(events) - 1, seed)
            names = tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))
            assert "kept" in names
            (file,) = (name for name in names if name in ("kept/file", "kept/other"))
            found.setdefault((policy.names, policy.data), set()).add((names, (folder / file).read_bytes()))
    old, new = b"a" * 2048, b"b" * 2048
    assert found[0.0, 0.0] == {(("kept", "kept/file"), old)}
    assert found[1.0, 1.0] == {(("kept", "kept/other", "lost", "lost/file"), new)}
    torn = {content for _, content in found[0.5, 0.5]}
    assert {old, new} < torn
    assert all(content[at : at + 512] in (b"a" * 512, b"b" * 512) for content in torn for at in range(0, 2048, 512))
    # Of a folder whose own name was not synced, what is in it does not help.
    assert {("lost" in names, "kept/other" in names) for names, _ in found[0.5, 0.5]} == {
        (lost, other) for lost in (False, True) for other in (False, True)
    }
