"""What `.ci/run` does and in which order, with stand-ins for the commands that it calls: nothing is installed here."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.style.tree import ROOT

# All that the script needs; without apt, which would install programs.
TOOLS = {
    *(
        "bash",
        "chmod",
        "cat",
        "date",
        "dirname",
        "echo",
        "git",
        "grep",
        "id",
        "ln",
        "make",
        "mkdir",
        "mktemp",
        "rm",
        "sh",
        "sleep",
    ),
    *("test", "tr", "true"),
}

# Says where it runs and with which arguments, and notes a file in which something was skipped.
TEST = (
    'echo "test in $(notdir $(CURDIR)): $(ARGS)"; test -z "$$SKIPPED_FILES" || echo tests/test_x.py >"$$SKIPPED_FILES"'
)

CLONE, SLOW = "test in stream-node: ", "slow tests"
ONCE_MORE = "--last-failed --last-failed-no-failures none"
AGAIN = "test in here: -m not soak tests/black_box/test_demo.py "
EXTRAS = "install all"
RUN_S_MAX = 120


class CheckOut:
    """A repository with the script of CI, and stand-ins for what it calls."""

    def __init__(
        self,
        directory: Path,
        *,
        check: str = "echo checked",
        test: str = TEST,
        soak: str = "true",
        venv: str = "true",
        extras: str = "true",
    ) -> None:
        self.root = directory / "here"
        self._bin = directory / "bin"
        self._bin.mkdir()
        for tool in TOOLS:
            (self._bin / tool).symlink_to(str(shutil.which(tool)))
        (directory / "tmp").mkdir()
        for name, text in {
            ".ci/run": (ROOT / ".ci/run").read_text(encoding="utf-8"),
            "check": f"#!/bin/sh\n{check}\n",
            "tools/spark.sh": f'{extras}\necho "install $EXTRAS"\n',
            # With --version, no test runs.
            "Makefile": f"test:\n\t@case '$(ARGS)' in --version) {venv};; *) {test};; esac\nsmoke:\n\t@echo measured\n"
            f"slow:\n\t@echo slow tests\nsoak:\n\t@{soak}\nvenv:\n\t@{venv}\ncoverage:\n\t@echo covered >&2\n",
        }.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text, encoding="utf-8")
        (self.root / "check").chmod(0o755)
        for command in (
            ("init", "-q"),
            ("add", "."),
            ("-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"),
        ):
            subprocess.run(["git", *command], cwd=self.root, check=True, capture_output=True)

    def stand_in(self, name: str, text: str) -> None:
        (self._bin / name).unlink(missing_ok=True)
        (self._bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self._bin / name).chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        fixed = {"PATH": str(self._bin), "CI": "true", "TMPDIR": str(self.root.parent / "tmp")}
        done = subprocess.run(
            ["bash", ".ci/run"],
            cwd=self.root,
            env=fixed | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
        )
        assert list((self.root.parent / "tmp").iterdir()) == [], "the clone was left behind"
        return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on standard output, without the names of temporary folders."""
    return [line.partition("@")[0] for line in done.stdout.splitlines()]


def test_a_fresh_clone_is_tested_before_anything_is_installed(tmp_path: Path) -> None:
    """Goal: `make test` sets up the clone, and the second run is of what was skipped in the first. Method: the set-up
    says which target calls it; the list is printed where it is used."""
    show = f"{TEST}; cat $(patsubst @%,%,$(filter @%,$(ARGS))) </dev/null"
    done = CheckOut(tmp_path, test=show, venv='echo "make $@ sets up" >&2').run()
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("make test sets up\n")
    assert said(done) == [CLONE, SLOW, "checked", EXTRAS, AGAIN, "tests/test_x.py", "measured"]


def test_the_clone_has_what_is_committed_and_the_specifications(tmp_path: Path) -> None:
    """Goal: a file that was not committed does not help, and tests find `../shared`. Method: both are looked for."""
    (tmp_path / "shared").mkdir()
    house = CheckOut(tmp_path, test="ls -d extra ../shared 2>/dev/null; true")
    (house._bin / "ls").symlink_to(str(shutil.which("ls")))
    (house.root / "extra").touch()
    done = house.run(NO_SPARK="1")
    assert (done.returncode, said(done)) == (0, ["../shared", SLOW, "checked", "measured"])


def test_without_asking_nothing_is_installed(tmp_path: Path) -> None:
    done = CheckOut(tmp_path).run(CI="")
    assert (done.returncode, said(done)) == (0, [CLONE, SLOW, "checked", "measured"])


def test_programs_that_are_not_there_are_asked_of_apt(tmp_path: Path) -> None:
    """Goal: tests beside other programs run in CI, and no service is started. Method: a stand-in for apt."""
    house = CheckOut(tmp_path)
    house.stand_in("apt-get", 'echo "apt-get $RUNLEVEL $*" >&2')
    house.stand_in("id", "echo 0")
    house.stand_in("strace", ":")
    done = house.run()
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("apt-get 1 install")] == [
        "apt-get 1 install -y -qq --no-install-recommends "
        "redis-server nats-server prometheus chromium nghttp2-client gcc libc6-dev"
    ]


def test_a_download_that_breaks_off_is_tried_again(tmp_path: Path) -> None:
    """Method: each set-up, and that of the extras, fails at first."""
    once = "test -e {0} || {{ : >{0}; exit 1; }}"
    done = CheckOut(tmp_path, venv=once.format("set_up"), extras=once.format("extras")).run()
    assert (done.returncode, said(done)) == (0, [CLONE, SLOW, "checked", EXTRAS, AGAIN, "measured"]), done.stderr
    assert done.stderr.count("ci: once more: ") == 3


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files to another user")
def test_root_tests_the_checkout_of_another_user(tmp_path: Path) -> None:
    """Goal: git does not refuse it, neither to the script nor to what that calls."""
    house = CheckOut(tmp_path, check="git ls-files check")
    for path in (house.root, *house.root.rglob("*")):
        os.chown(path, 12345, 12345)
    done = house.run(NO_SPARK="1")
    assert (done.returncode, said(done)) == (0, [CLONE, SLOW, "check", "measured"]), done.stderr


def test_coverage_is_measured_after_check(tmp_path: Path) -> None:
    house = CheckOut(tmp_path, check="echo checked >&2; exit ${BROKEN:-0}")
    assert house.run(NO_SPARK="1").stderr.splitlines()[:2] == ["checked", "covered"]
    assert "covered" not in house.run(NO_SPARK="1", BROKEN="1").stderr


def test_it_stops_where_check_fails(tmp_path: Path) -> None:
    done = CheckOut(tmp_path, check="exit 3").run()
    assert (done.returncode, said(done)) == (3, [CLONE, SLOW])


def test_it_fails_where_the_tests_of_the_clone_fail_twice(tmp_path: Path) -> None:
    """Method: tests that always fail; then tests of which the second try passes."""
    (tmp_path / "broken").mkdir()
    done = CheckOut(tmp_path / "broken", test=f"{TEST}; exit 1").run()
    assert done.returncode != 0
    assert said(done) == [CLONE, CLONE + ONCE_MORE]
    (tmp_path / "mended").mkdir()
    done = CheckOut(tmp_path / "mended", test=f"{TEST}; test -n '$(ARGS)'").run()
    assert (done.returncode, said(done)[:3]) == (0, [CLONE, CLONE + ONCE_MORE, SLOW])
    assert done.stderr.splitlines()[-1] == "ci: 1 tests needed a second try: (a run that named none)"


def test_what_needed_a_second_try_is_named_and_counted(tmp_path: Path) -> None:
    """Method: tests that note what failed, as pytest does, in a folder that has the note of an earlier run."""
    cache = ".pytest_cache/v/cache"
    note = f'mkdir -p {cache}; printf \'{{\\n  "%s": true,\\n  "%s": true\\n}}\' $(NAMES) >{cache}/lastfailed'
    once = f"{TEST}; test -z '$(ARGS)' || test -e tried || {{ : >tried; {note}; exit 1; }}"
    house = CheckOut(tmp_path, test=once)
    (house.root / cache).mkdir(parents=True)
    (house.root / cache / "lastfailed").write_text('{\n  "tests/test_old.py::test_z": true\n}')
    done = house.run(NAMES="'tests/test_a.py::test_x[a b]' tests/test_b.py::test_y")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "ci: 2 tests needed a second try: tests/test_a.py::test_x[a b] tests/test_b.py::test_y"
    )


def test_a_run_without_a_second_try_says_so(tmp_path: Path) -> None:
    done = CheckOut(tmp_path).run(NO_SPARK="1")
    assert done.stderr.splitlines()[-1] == "ci: 0 tests needed a second try:"


def test_what_fails_with_the_extras_is_tried_once_more(tmp_path: Path) -> None:
    """Method: tests that always fail with the extras; then tests of which the second try passes."""
    lines = [CLONE, SLOW, "checked", EXTRAS, AGAIN, AGAIN]
    (tmp_path / "broken").mkdir()
    done = CheckOut(tmp_path / "broken", test=f"{TEST}; test -z '$(ARGS)'").run()
    assert done.returncode != 0
    assert said(done) == lines
    (tmp_path / "mended").mkdir()
    once = f"{TEST}; test -z '$(ARGS)' || test -e tried || {{ : >tried; exit 1; }}"
    done = CheckOut(tmp_path / "mended", test=once).run()
    assert (done.returncode, said(done)) == (0, [*lines, "measured"])


def test_compiled_modules_are_tested_where_there_is_a_c_compiler(tmp_path: Path) -> None:
    """Goal: the suite runs with compiled modules, and not where they were not used. Method: a Python that says so."""
    for name, said_version, code in (("used", "stream-node 1, compiled", 0), ("unused", "stream-node 1, pure", 1)):
        (tmp_path / name).mkdir()
        made = (
            f"mkdir -p $(VENV)/bin && echo 'echo \"{said_version}\"' >$(VENV)/bin/python && chmod +x $(VENV)/bin/python"
        )
        house = CheckOut(tmp_path / name, venv=made)
        house.stand_in("cc", ":")
        house.stand_in("python3", ":")
        done = house.run()
        assert done.returncode == code, done.stderr
        compiled = [line for line in said(done) if line.startswith(f"{CLONE}-m not soak tests/bare tests/ockam")]
        assert len(compiled) == (name == "used")


def test_without_pip_the_compiled_modules_are_not_tested(tmp_path: Path) -> None:
    """Goal: Debian has Python without pip, and its environments get one all the same."""
    house = CheckOut(tmp_path)
    house.stand_in("cc", ":")
    house.stand_in("python3", 'case "$*" in "-m pip"*) exit 1;; esac')
    done = house.run()
    assert done.returncode == 0, done.stderr
    assert "ci: no C compiler, or no pip: the compiled modules are not tested" in done.stderr


def test_tests_begin_within_their_time_and_what_failed_at_any_time(tmp_path: Path) -> None:
    """Goal: CI ends also on a slow machine, and a test that has failed is not skipped in its second try because it is
    late. Method: tests print until when they may begin, at the Unix time 10,000; those with the extras fail once."""
    told = f'echo "until $$BEGIN_UNTIL_S"; {TEST}; test -z "$(ARGS)" || test -e tried || {{ : >tried; exit 1; }}'
    house = CheckOut(tmp_path, test=told, soak='echo "until $$BEGIN_UNTIL_S"')
    house.stand_in("date", "echo 10000")
    done = house.run()
    assert done.returncode == 0, done.stderr
    untils = [line.removeprefix("until ") for line in done.stdout.splitlines() if line.startswith("until ")]
    assert untils[:3] == ["15400", "13000", ""]
    # Some seconds have passed when the soak tests begin: at most as many as the script may take.
    assert len(untils[3:]) == 2
    assert 11200 <= int(untils[3]) <= 11200 + RUN_S_MAX
    assert 10600 <= int(untils[4]) <= 10600 + RUN_S_MAX


def test_soak_tests_that_fail_are_tried_once_more(tmp_path: Path) -> None:
    """Method: a first run of the others fails, and its second does not; then one of Spark's fails twice."""
    told = 'echo "soak $(ARGS)"'
    lines = [CLONE, SLOW, "checked", "measured", "soak tests/spark_export", "soak --ignore tests/spark_export"]
    (tmp_path / "mended").mkdir()
    once = f"{told}; case '$(ARGS)' in --ignore*) test -e tried || {{ : >tried; exit 1; }};; esac"
    done = CheckOut(tmp_path / "mended", soak=once).run(NO_SPARK="1")
    assert (done.returncode, said(done)) == (0, [*lines, f"{lines[-1]} {ONCE_MORE}"])
    (tmp_path / "broken").mkdir()
    done = CheckOut(tmp_path / "broken", soak=f"{told}; exit 1").run(NO_SPARK="1")
    assert done.returncode != 0
    assert said(done) == [*lines[:5], f"{lines[4]} {ONCE_MORE}"]


def test_a_process_that_the_tests_left_behind_is_told_and_ended(tmp_path: Path) -> None:
    house = CheckOut(tmp_path, test='setsid sleep 1000 >/dev/null 2>&1 & echo $$! >"$$OUT"')
    (house._bin / "setsid").symlink_to(str(shutil.which("setsid")))
    done = house.run(OUT=str(tmp_path / "pid"), NO_SPARK="1", LEAVE_S_MAX="1")
    assert done.returncode == 1
    assert "ci: left behind:" in done.stderr
    assert "sleep 1000" in done.stderr
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline_s = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
