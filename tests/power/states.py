"""States of a disk after a power cut: choosing them, making them, and saying how to make one again."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.power.disks import POLICIES, Disks
from tests.power.recording import Event, Kind, Recording, read_trace, write_trace
from tests.stream_storage.storage_samples import MEMORY_DIRECTORY

STATE_VARIABLE = "POWER_STATE"
"""CUT:SEED, the one state to look at again; TRACE_VARIABLE names the file of the recording that it belongs to."""
TRACE_VARIABLE = "POWER_REPLAY"


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, in memory if there is room: nothing in it needs a real sync."""
    with tempfile.TemporaryDirectory(prefix="stream-node-power-", dir=MEMORY_DIRECTORY) as folder:
        yield Path(folder)


def recorded(make: Callable[[Recording], None]) -> list[Event]:
    """Record what `make` does to an empty disk. If a state is replayed, read the recording of that time."""
    replayed = os.environ.get(TRACE_VARIABLE)
    if replayed:
        return list(read_trace(Path(replayed).read_bytes(), ""))
    with scratch() as folder:
        recording = Recording(folder)
        make(recording)
        events = recording.events()
        check_complete(recording.root, events)
        return events


def check_complete(root: Path, events: list[Event]) -> None:
    """Check that the recording is complete: the disk that is rebuilt with nothing lost equals the real one."""
    with scratch() as rebuilt:
        Disks(events).write_all(rebuilt)
        assert _listing(rebuilt) == _listing(root)


def choose_states(events: list[Event], count: int, seed: int, *, since: int = 0) -> list[tuple[int, int]]:
    """Choose states: cuts behind events from `since` on, each with a seed.

    Half of the cuts are at events that are no writes. These are few, and faults show there.
    """
    randomness = random.Random(seed)
    turns = [at for at in range(since, len(events)) if events[at].kind is not Kind.WRITTEN]
    states = []
    for number in range(count):
        cut = randomness.choice(turns) if number % 2 else randomness.randrange(since, len(events))
        states.append((cut, randomness.randrange(1 << 20) * len(POLICIES) + number % len(POLICIES)))
    return states


def examine(
    events: list[Event], states: list[tuple[int, int]], check: Callable[[Path, int], None], *, keep: bool = True
) -> None:
    """Make each state, and call `check` with its folder and its cut; `check` raises if the state is wrong.

    keep: the recording of a wrong state stays in the temporary folder, and the failure says how to make the state
    again.
    """
    given = os.environ.get(STATE_VARIABLE)
    if given:
        at, _, with_seed = given.partition(":")
        states = [(int(at), int(with_seed))]
    disks = Disks(events)
    for cut, seed in states:
        with scratch() as folder:
            policy = disks.write(folder, cut, seed)
            try:
                check(folder, cut)
            except Exception as error:
                if not keep:
                    raise
                trace = _keep(events)
                test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
                error.add_note(
                    f"state {cut}:{seed}, behind {_told(events[cut])}, {policy}\n"
                    f"replay: {TRACE_VARIABLE}={trace} {STATE_VARIABLE}={cut}:{seed} python -m pytest '{test}'"
                )
                raise


def facts_until(events: list[Event], cut: int) -> Iterator[Event]:
    """The marks of the trace at or before a cut."""
    return (event for event in events[: cut + 1] if event.kind is Kind.MARK)


def _told(event: Event) -> str:
    return f"{event.kind.name} {event.path} {event.other} {event.data[:60]!r}".replace("  ", " ")


def _keep(events: list[Event]) -> Path:
    """Write the trace to a file that outlives the test. Its paths begin below the root."""
    descriptor, name = tempfile.mkstemp(prefix=f"stream-node-power-{os.getuid()}-", suffix=".trace")
    with os.fdopen(descriptor, "wb") as file:
        file.write(write_trace(events))
    return Path(name)


def _listing(root: Path) -> dict[str, bytes | str | None]:
    """Every name below a folder, with the content of files and the target of links.

    SQLite's shared memory counts as empty: it is mapped, so its changes are not recorded.
    """
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = b"" if name.endswith("-shm") else path.read_bytes()
        else:
            found[name] = None
    return found


def copy_of(folder: Path, target: Path) -> Path:
    """A copy of a state, for a check that changes it."""
    return Path(shutil.copytree(folder, target, symlinks=True))
