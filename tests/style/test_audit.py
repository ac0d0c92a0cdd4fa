"""Goal: `tools/audit.py` fails with the name and the fixed version of a vulnerable package, and never for a network.

Method: the tool in a process of its own; a program named pip-audit that answers as the real one does was made by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.style.tree import ROOT
from tests.support.command import python_program

TOOL = ROOT / "tools" / "audit.py"
CLEAN = {"name": "anyio", "version": "4.16.0", "vulns": []}
WRONG = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.2"], "aliases": ["CVE-2014-0012"], "description": "…"}],
}
UNFIXED = {"name": "odd", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": [], "aliases": []}]}


def audit(folder: Path, program: str | None) -> subprocess.CompletedProcess[str]:
    """Runs the tool with this text as the program pip-audit, and nothing else on PATH."""
    if program is not None:
        file = folder / "pip-audit"
        file.write_text(python_program(program))
        file.chmod(0o755)
    return subprocess.run(
        # Without site packages, a pip-audit of this environment is not found.
        [sys.executable, "-S", TOOL],
        env={**os.environ, "PATH": str(folder), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def answering(*dependencies: dict[str, Any], code: int = 0) -> str:
    report = json.dumps({"dependencies": dependencies, "fixes": []})
    return f"import sys\nprint({report!r})\nprint('Found …', file=sys.stderr)\nsys.exit({code})"


def test_no_vulnerability_passes_and_counts_the_packages(tmp_path: Path) -> None:
    done = audit(tmp_path, answering(CLEAN, {**CLEAN, "name": "typer"}))
    assert (done.returncode, done.stdout) == (0, "audit: no known vulnerability in 2 locked packages\n")


def test_both_locks_are_asked_for_without_installing_them(tmp_path: Path) -> None:
    program = "import sys, pathlib\npathlib.Path(__file__).with_name('said').write_text(' '.join(sys.argv[1:]))"
    audit(tmp_path, program)
    said = (tmp_path / "said").read_text()
    assert "--disable-pip" in said
    for lock in ("tools/locks/requirements.lock", "tools/locks/requirements-dev.lock"):
        assert f"--requirement {ROOT / lock}" in said


def test_a_vulnerability_fails_with_its_name_and_the_fixed_version(tmp_path: Path) -> None:
    done = audit(tmp_path, answering(CLEAN, WRONG, UNFIXED, code=1))
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first.startswith("audit: jinja2 2.4.1 has PYSEC-2014-8; fixed in 2.7.2; ")
    assert second.startswith("audit: odd 1 has PYSEC-1; no version is fixed yet; ")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys\nsys.exit('ConnectionError: no route')", "pip-audit has no report: ConnectionError: no route"),
        ("print('[]')", "has a form that is not known here"),
        (answering(), "has examined no package: its report is empty"),
        (answering({"name": "x", "skip_reason": "x is unknown"}), "has examined no package: x is unknown"),
        (answering({"name": "x", "vulns": []}), "has a form that is not known here: KeyError('version')"),
    ],
)
def test_what_cannot_be_examined_is_no_pass_and_has_a_sentence(tmp_path: Path, program: str, reason: str) -> None:
    done = audit(tmp_path, program)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("audit: examined nothing: ")
    assert reason in done.stdout


def test_without_pip_audit_it_fails(tmp_path: Path) -> None:
    done = audit(tmp_path, None)
    assert (done.returncode, done.stdout) == (1, "audit: pip-audit is not installed: `make venv` installs it\n")


def test_a_checkout_in_a_folder_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the programs that tests write for this Python run there, too."""
    (tmp_path / "a place").mkdir()
    (tmp_path / "a place/python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a place/python"))
    assert audit(tmp_path, answering(CLEAN)).returncode == 0


def test_a_service_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip-audit"
    file.write_text(python_program("import sys\nsys.stdin.read()\nimport threading\nthreading.Event().wait()"))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = f"import sys; sys.path.insert(0, {str(TOOL.parent)!r}); import audit; sys.exit(audit.main((), 0.5))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (3, "audit: examined nothing: pip-audit did not end in 0.5 s\n")
