"""Changes the state machines, the commit and the codec in one place at a time, and reports whether a test notices.

    python tools/mutants.py --count 60 --seconds 300     prints every change that no test has noticed

mutmut makes the changes (mutants). Its own runner is not used: it tests all mutants, which takes days, and starts the
tests in forks of one process, whose tests fork processes, too. Here each mutant gets a pytest of its own, in a copy of
the tree. The tests whose files name the changed module run first. If they notice nothing, the quick tests of its folder
run, and then those of its package. Texts, `raise` and `assert` are not changed, because tests compare few words.

A seed chooses the mutants. A change of the source elsewhere leaves the choice as it is. Exit code 1: the tests noticed
fewer than 95 % of the mutants.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import libcst
from libcst import matchers
from mutmut.mutation.file_mutation import Mutation, create_mutations

ROOT = Path(__file__).resolve().parents[1]
KILLED_MIN = 0.95
CHANGED = re.compile(r"^bare/|^stream_storage/(.*/)?commit\.py$|_machine\.py$")
LEFT_OUT = ("bare/cli.py", "bare/__main__.py")
TESTS = {"stream_service": "tests/service", "stream_client": "tests/client"}
"""The folders of tests that have another name than the package."""
EQUIVALENT = {
    # A number that equals the last one is refused above.
    "bare/schema/dialect.py:  < last ->  <= last (1)",
    # Without a place, an error is at the next token, which is this one.
    'bare/schema/parser.py: self._only_older("struct { ... }", at) -> self._only_older("struct { ... }", None) (1)',
    # The code only tests the truth of both.
    "block_node/publish/publish_machine.py: self.forward_due = self.admit_due = False"
    " -> self.forward_due = self.admit_due = None (1)",
}
"""The keys of mutants that behave as the source does."""
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist", "*.png", "*.svg")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60")
QUICK = "not slow and not soak and not network and not spark"
RUN_S_MAX = 240.0
"""The longest time of one run of tests, in seconds. A mutant with a longer run of its module's tests is noticed: it has
no end. A mutant with a longer run of its package's tests is not counted."""
PROCESSES = 2


class Mutant(NamedTuple):
    """Mutant: a source with one change. place: its path in the tree. key: the change, without where it is, so that a
    change of other lines leaves the key as it is."""

    place: str
    key: str
    module: libcst.Module
    mutation: Mutation

    @property
    def source(self) -> str:
        text: str = self.module.code
        return text

    @property
    def changed(self) -> str:
        changed = self.module.deep_replace(self.mutation.original_node, self.mutation.mutated_node)
        assert isinstance(changed, libcst.Module)
        text: str = changed.code
        return text

    @property
    def difference(self) -> str:
        lines = self.source.splitlines(), self.changed.splitlines()
        return "\n".join(difflib.unified_diff(*lines, self.place, self.place, n=1, lineterm=""))


def mutants(root: Path, places: Iterable[str]) -> Iterator[Mutant]:
    """Yields every mutant of these sources."""
    for place in places:
        module, mutations, *_ = create_mutations(place, (root / place).read_text(encoding="utf-8"))
        spared: set[libcst.CSTNode] = set()
        for node in matchers.findall(module, matchers.Raise() | matchers.Assert()):
            spared.update(matchers.findall(node, matchers.MatchIfTrue(lambda _: True)))
        times: Counter[str] = Counter()
        for each in mutations:
            # A text, or an assignment of a text, is not changed.
            parts = each.original_node, getattr(each.original_node, "value", None)
            if each.original_node in spared or any(isinstance(part, libcst.BaseString) for part in parts):
                continue
            change = " -> ".join(map(module.code_for_node, (each.original_node, each.mutated_node)))
            times[change] += 1
            key = f"{place}: {change} ({times[change]})"
            if key not in EQUIVALENT:
                yield Mutant(place, key, module, each)


def places(root: Path) -> list[str]:
    """Returns the paths of the sources that are changed."""
    packages = [each.parent for each in root.glob("[!.]*/__init__.py")]
    found = sorted(str(path.relative_to(root)) for folder in packages for path in folder.rglob("*.py"))
    return [each for each in found if CHANGED.search(each) and each not in LEFT_OUT]


def near_tests(root: Path, place: str) -> list[str]:
    """Returns the test files that name a module."""
    name = place.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    files = sorted((root / "tests").rglob("test_*.py"))
    return [str(each.relative_to(root)) for each in files if name in each.read_text(encoding="utf-8")]


def wide_tests(root: Path, place: str) -> list[str]:
    """Returns the folders of tests to which a module belongs, the nearest first."""
    package = place.partition("/")[0]
    top = TESTS.get(package, f"tests/{package}")
    parts = place.split("/")[1:-1]
    folders = ("/".join([top, *parts[:end]]) for end in range(len(parts), -1, -1))
    there = [each for each in folders if (root / each).is_dir()]
    return sorted({there[0], top}, reverse=True)


class Copy:
    """A copy of the tree, in which one mutant is tested at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = folder
        shutil.copytree(root, folder, ignore=NOT_COPIED)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SOAK_", "PYTEST_"))}
        self._environment = {**kept, "HYPOTHESIS_PROFILE": "mutants"}
        self._written = 0

    def kills(self, mutant: Mutant) -> bool | None:
        """Returns whether a test notices the mutant. None: the tests take too long to tell."""
        self._write(mutant.place, mutant.changed)
        try:
            near = near_tests(self._root, mutant.place)
            # A mutant whose own tests have no end is noticed.
            if near and self.fails(near) in (True, None):
                return True
            results = (self.fails([folder]) for folder in wide_tests(self._root, mutant.place))
            return next((result for result in results if result is not False), False)
        finally:
            self._write(mutant.place, mutant.source)

    def fails(self, tests: list[str]) -> bool | None:
        """Returns whether one of these tests fails. None: the tests take too long to tell."""
        run = subprocess.Popen(
            [*PYTEST, "-m", QUICK, *tests],
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            # 5: there was no test to run.
            return run.wait(RUN_S_MAX) not in (0, 5)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # The tests may have started processes.
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()

    def _write(self, place: str, text: str) -> None:
        file = self._root / place
        file.write_text(text, encoding="utf-8")
        # Python keeps old bytecode if whole seconds and size are equal, so each write gets another time.
        self._written += 1
        os.utime(file, (self._written, self._written))


def tested(root: Path, chosen: list[Mutant], seconds: float) -> Iterator[tuple[Mutant, bool]]:
    """Tests mutants in their order until `seconds` have passed, and yields whether each was noticed.

    Raises SystemExit if tests fail without a change.
    """
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="stream-node-mutants-") as work, ThreadPoolExecutor(PROCESSES) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        made = [Copy(root, Path(work, str(number), "tree")) for number in range(PROCESSES)]
        for each in made:
            copies.put(each)

        def test(mutant: Mutant) -> bool | None:
            copy = copies.get()
            try:
                return copy.kills(mutant) if time.monotonic() < ends else None
            finally:
                copies.put(copy)

        with_tests = next(filter(None, (near_tests(root, mutant.place) for mutant in chosen)))
        if made[0].fails(with_tests):
            raise SystemExit("mutants: tests fail in a copy of the tree without any change, so they say nothing")
        for mutant, is_killed in zip(chosen, pool.map(test, chosen), strict=True):
            if is_killed is not None:
                yield mutant, is_killed


def choose(found: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """Returns `count` mutants, chosen by the seed."""

    def order(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()

    return sorted(found, key=order)[:count]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Tests the tests of machines, commit and codec.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", default="", help="the beginning of the paths of the sources")
    asked = parser.parse_args(arguments)
    sources = [each for each in places(ROOT) if each.startswith(asked.only)]
    chosen = choose(mutants(ROOT, sources), asked.seed, asked.count)
    killed = total = 0
    for mutant, is_killed in tested(ROOT, chosen, asked.seconds):
        killed, total = killed + is_killed, total + 1
        if not is_killed:
            print(mutant.difference, end="\n\n", flush=True)
    share = killed / max(1, total)
    print(f"mutants: {killed} of {total} were noticed ({share:.1%}), seed {asked.seed}")
    return 0 if share >= KILLED_MIN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
