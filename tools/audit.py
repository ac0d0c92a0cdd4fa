"""Looks for known vulnerabilities of the packages in LOCKS, with the program pip-audit.

    python tools/audit.py

The exit code is 1 if a locked version has a known vulnerability, or if pip-audit, which the development lock has, is
not installed. The exit code is 3 if the locks could not be examined, as when the service of pip-audit does not answer
in time. Then `./check` goes on, because it must not depend on a network, and reports this at its end.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCKS = tuple(ROOT / f"tools/locks/requirements{name}.lock" for name in ("", "-dev", "-extras"))
TIME_S_MAX = 60.0
"""The longest time that all locks together may take, in seconds. The answers are kept on disk for the next run."""
ANSWER_S_MAX = 5
"""The longest wait for one answer of the service, in seconds."""
ACCEPTED: dict[str, str] = {}
"""The vulnerabilities that do not concern this project: identifier -> the reason."""


class Skipped(Exception):
    """The locks could not be examined. The text says why."""


class Absent(Exception):
    """pip-audit is not installed. The text says how to get it."""


class Finding(NamedTuple):
    """A known vulnerability of a locked package. fixed: the versions without it; empty if there is none yet."""

    name: str
    version: str
    identifier: str
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        fixed = f"fixed in {' and '.join(self.fixed)}" if self.fixed else "no version is fixed yet"
        return f"{self.name} {self.version} has {self.identifier}; {fixed}"


def main(locks: tuple[Path, ...] = LOCKS, time_s_max: float = TIME_S_MAX) -> int:
    """Prints the result. Returns the exit code."""
    try:
        found, packages = examine(locks, time_s_max)
    except Skipped as reason:
        print(f"audit: examined nothing: {reason}")
        return 3
    except Absent as reason:
        print(f"audit: {reason}")
        return 1
    open_ones = [each for each in found if each.identifier not in ACCEPTED]
    for each in open_ones:
        print(f"audit: {each}; `sh tools/lock.sh --upgrade` takes newer versions")
    if not open_ones:
        print(f"audit: no known vulnerability in {packages} locked packages")
    return 1 if open_ones else 0


def examine(locks: tuple[Path, ...], time_s_max: float) -> tuple[list[Finding], int]:
    """Returns the known vulnerabilities, and the number of examined packages. Raises Skipped and Absent."""
    options = ["--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", str(ANSWER_S_MAX)]
    files = [part for lock in locks for part in ("--requirement", str(lock))]
    try:
        done = subprocess.run(
            [*find_program(), *options, *files],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=time_s_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"pip-audit did not end in {time_s_max:g} s") from None
    # The exit code of pip-audit is 1 both for a vulnerability and for a failure. Only its report tells them apart.
    try:
        report = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Skipped(f"pip-audit has no report: {lines[-1]}") from None
    return read_report(report)


def find_program() -> list[str]:
    """Returns the command of pip-audit. Raises Absent."""
    if importlib.util.find_spec("pip_audit") is not None:
        return [sys.executable, "-m", "pip_audit"]
    found = shutil.which("pip-audit")
    if found is None:
        raise Absent("pip-audit is not installed: `make venv` installs it")
    return [found]


def read_report(report: Mapping[str, Any]) -> tuple[list[Finding], int]:
    """Returns the known vulnerabilities and the number of packages in a report of pip-audit.

    Raises Skipped if the report has another form, or has no packages.
    """
    try:
        # The service does not know every package; such an entry has a reason in place of a version.
        known = [each for each in report["dependencies"] if "skip_reason" not in each]
        packages = {(each["name"], each["version"]): each["vulns"] for each in known}
        found = [
            Finding(name, version, each["id"], tuple(each["fix_versions"]))
            for (name, version), all_of_it in packages.items()
            for each in all_of_it
        ]
    except (KeyError, TypeError) as error:
        raise Skipped(f"the report of pip-audit has a form that is not known here: {error!r}") from None
    if not packages:
        reasons = [each["skip_reason"] for each in report["dependencies"]]
        raise Skipped(f"pip-audit has examined no package: {reasons[0] if reasons else 'its report is empty'}")
    return found, len(packages)


if __name__ == "__main__":
    sys.exit(main())
