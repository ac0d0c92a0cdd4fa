"""Goal: the files for GitHub, pre-commit and editors say what the project does. Method: compare them with `.ci/run`,
`check`, and the tools that generate files."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.black_box.test_wheel import PYTHONS
from tests.style.tree import ROOT, files
from tools.reference import PAGES

COMMAND = re.compile(
    r"^\s*(?:\w+=\S+ )?(?:download )?(?P<command>\./check|make(?: -s)?(?: -C \"\$\w+\")? (?P<target>\w+))", re.MULTILINE
)
OF_CI_ONLY = {
    "soak": "half an hour of tests that kill processes",
    "venv": "sets up again if a download breaks off",
}
"""Targets that only `.ci/run` has, and why."""
DEMO = "tests/black_box/test_demo.py"
"""`.ci/run` has the demo in this test, which types `make demo`'s command."""


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def commands_of_ci(text: str) -> set[str]:
    """The commands of contributors that the script `.ci/run` calls."""
    found = {f"make {match['target']}" if match["target"] else match["command"] for match in COMMAND.finditer(text)}
    return (found | {"make demo"} if DEMO in text else found) - {f"make {target}" for target in OF_CI_ONLY}


def commands_of_workflow() -> set[str]:
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"].values()
    return {step["run"] for job in jobs for step in job["steps"] if "run" in step}


def test_the_workflow_runs_the_commands_of_ci() -> None:
    assert commands_of_workflow() == commands_of_ci((ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert commands_of_workflow() >= {"make demo", "make test", "./check"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("make -s smoke\n./check\n", {"make smoke", "./check"}),
        ('    make -s -C "$folder" test VENV=.venv && return\n', {"make test"}),
        ("    X=$(y) make -s soak ARGS=1\n", set()),
        ("    download make -s docs VENV=.venv\n", {"make docs"}),
        (f"# 2. ./check; make lint\n{DEMO}\n", {"make demo"}),
    ],
)
def test_a_command_of_ci_is_seen(text: str, expected: set[str]) -> None:
    assert commands_of_ci(text) == expected


def test_the_workflow_runs_on_every_python_that_is_claimed() -> None:
    matrix = read_yaml(".github/workflows/ci.yml")["jobs"]["commands"]["strategy"]["matrix"]
    assert tuple(matrix["python"]) == PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={PYTHONS[0]}"


def test_coverage_is_measured_by_branches_and_has_a_floor() -> None:
    """Goal: the folders of tests are those of the measured packages."""
    assert "make coverage" in commands_of_workflow()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["coverage"]
    assert settings["run"]["branch"]
    assert settings["report"]["fail_under"] >= 85
    (folders,) = re.findall("^COVERED = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert folders.split() == [f"tests/{package}" for package in settings["run"]["source"]]
    assert all((ROOT / folder).is_dir() for folder in folders.split())


def test_pre_commit_calls_the_parts_of_check_that_need_no_network() -> None:
    """The audit of the locks, which asks a service, is no step; the comparison of the locks needs uv and an index."""
    check = (ROOT / "check").read_text(encoding="utf-8")
    parts = re.findall(r'^step "([^"]*)" "\$VENV/bin/python" (.*)$', check, re.MULTILINE)
    (group,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert group["repo"] == "local"
    hooks = [(hook["name"], hook["entry"].removeprefix(".venv/bin/python ")) for hook in group["hooks"]]
    assert hooks == parts
    assert len(parts) >= 6
    assert all((hook["language"], hook["pass_filenames"]) == ("system", False) for hook in group["hooks"])


def test_generated_files_are_marked() -> None:
    """Goal: a review shows what people wrote. Method: git says which files have the mark."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a clone")
    locks = [str(path.relative_to(ROOT)) for path in files(ROOT / "tools/locks", ".lock")]
    generated = sorted({*PAGES, *locks})
    written = ["README.md", "docs/wire.md", "stream_client/client.py"]
    command = [git, "check-attr", "linguist-generated", "--", *generated, *written]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    marked = [line.partition(": ")[0] for line in done.stdout.splitlines() if line.endswith(": set")]
    assert sorted(marked) == generated


def test_templates_ask_what_a_report_needs() -> None:
    for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir()):
        _, head, _ = path.read_text(encoding="utf-8").split("---\n", 2)
        assert yaml.safe_load(head).keys() >= {"name", "about"}
    request = (ROOT / ".github/pull_request_template.md").read_text(encoding="utf-8")
    assert "`make test`" in request
    assert "`./check`" in request


def test_editors_know_the_width_of_a_line() -> None:
    width = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["line-length"]
    assert f"\nmax_line_length = {width}\n" in Path(ROOT / ".editorconfig").read_text(encoding="utf-8")
