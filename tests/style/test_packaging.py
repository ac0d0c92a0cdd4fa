"""What is installed is what the code needs: packages, dependencies and locks agree. No index is asked."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.style.test_layers import imports
from tests.style.tree import ROOT, package_files, packages, parse, plant

# The name that is imported -> the name that is installed, where they are not the same.
INSTALLED_AS: dict[str, str] = {"google": "protobuf", "opentelemetry": "opentelemetry-sdk"}

# Packages and folders that run with an extra installed. The export's engine and its tables run without Spark.
EXTRA_OF = {
    "pyspark_stream_node": "spark",
    "spark_export": "spark",
    "spark_export/exporter": "export",
    "spark_export/tables": "export",
}

# Modules that only the program imports whose plugin they are.
PLUGINS = {"stream_node/pytest_plugin.py": "pytest"}

# Modules that do without an extra, or need another one than their folder, and say so where it is missing.
OPTIONAL = {
    "ockam/tracing/spans.py": "otel",
    "spark_export/decode/avro.py": "avro",
    "spark_export/decode/protobuf.py": "protobuf",
    "spark_export/exporter/application.py": "spark",
    "spark_export/exporter/spark_files.py": "spark",
    "spark_export/pipeline/outputs.py": "spark delta",
    "spark_export/pipeline/run.py": "spark delta",
    "stream_client/arrow.py": "export",
    "stream_storage/sqlite/bulk/arrow_pages.py": "export",
    "stream_storage/postgres/server.py": "postgres",
    "stream_storage/postgres/log.py": "postgres",
    "stream_storage/postgres/database.py": "postgres",
    "stream_storage/postgres/dialect.py": "postgres",
    "stream_storage/postgres/errors.py": "postgres",
    "stream_storage/postgres/session.py": "postgres",
    "cardinal_streams/transports/kafka_transport.py": "kafka",
    "spark_export/tables/delta.py": "delta",
    "spark_export/tables/iceberg.py": "iceberg",
}

# What is not in the locks, and why.
NOT_LOCKED = {
    "pybare": "installs a package named bare, which is ours",
}

LOCK_FOLDER = "tools/locks"
LOCKS = {
    "requirements.lock": ("build",),
    "requirements-dev.lock": ("build", "dev"),
    "requirements-docs.lock": ("docs",),
}
EXTRA_LOCKS = {
    "requirements-spark.lock": ("spark",),
    "requirements-extras.lock": (
        *("export", "spark", "spark-connect", "avro", "protobuf", "delta", "iceberg", "postgres", "kafka", "otel"),
        "http-tests",
    ),
}
"""The locks that have only what these extras need beyond requirements.lock."""
WITHOUT_PROJECT = "requirements-docs.lock"
"""This lock is for an environment that holds neither this project nor what it needs."""

PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


class Pinned(msgspec.Struct, frozen=True):
    """One entry of a lock. `direct` is whether pyproject.toml itself asks for it, by uv's annotation."""

    version: str
    hashes: int
    direct: bool


def read_lock(text: str) -> dict[str, Pinned]:
    """A lock's entries by canonical name."""
    starts = [match.start() for match in PIN.finditer(text)]
    entries = {}
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        entry = text[start:end]
        match = PIN.match(entry)
        assert match
        entries[canonicalize_name(match["name"])] = Pinned(
            match["version"], len(HASH.findall(entry)), "stream-node (pyproject.toml" in entry
        )
    return {str(name): pinned for name, pinned in entries.items()}


def lock_problems(root: Path) -> list[str]:
    """Where the locks are not what pyproject.toml asks for, as far as can be seen without an index."""
    project = _project(root)
    problems, locked = [], {}
    for lock, groups in (LOCKS | EXTRA_LOCKS).items():
        text = (root / LOCK_FOLDER / lock).read_text(encoding="utf-8")
        locked[lock] = entries = read_lock(text)
        needed = project["project"]["dependencies"] if lock != WITHOUT_PROJECT else []
        wanted = [Requirement(each) for each in needed]
        if lock in EXTRA_LOCKS:
            extras = project["project"]["optional-dependencies"]
            asked = [Requirement(each) for group in groups for each in extras.get(group, [])]
            wanted = [each for each in asked if canonicalize_name(each.name) not in locked["requirements.lock"]]
        else:
            wanted += [Requirement(each) for group in groups for each in project["dependency-groups"][group]]
        names = {str(canonicalize_name(each.name)) for each in wanted}
        problems += [f"{lock}: {name} is not pinned" for name in sorted(names - entries.keys())]
        problems += [
            f"{lock}: {name} {pinned.version} is pinned, and pyproject.toml no longer asks for it"
            for name, pinned in entries.items()
            if pinned.direct and name not in names
        ]
        for each in wanted:
            pinned_here = entries.get(str(canonicalize_name(each.name)))
            if pinned_here and not each.specifier.contains(pinned_here.version):
                problems.append(f"{lock}: {pinned_here.version} is pinned, pyproject.toml asks for {each}")
        problems += [f"{lock}: {name} has no hash" for name, pinned in entries.items() if not pinned.hashes]
        problems += [f"{lock}: {name}: {reason}" for name, reason in NOT_LOCKED.items() if name in entries]
        problems += [
            f"{lock}: holds an address or an option: {line}" for line in text.splitlines() if _is_foreign(line)
        ]
    run, dev, _ = (locked[lock] for lock in LOCKS)
    problems += [
        f"{lock}: {name} {pinned.version} is installed beside {known[name].version}"
        for lock in EXTRA_LOCKS
        for name, pinned in locked[lock].items()
        for known in (run, dev)
        if name in known and known[name].version != pinned.version
    ]
    problems += [
        f"requirements-dev.lock: {name} is not {pinned.version}, as in requirements.lock"
        for name, pinned in run.items()
        if name not in dev or dev[name].version != pinned.version
    ]
    return problems


def _is_foreign(line: str) -> bool:
    return "://" in line or line.startswith("-") or " @ " in line


def _project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def import_problems(root: Path) -> list[str]:
    """What packages import from elsewhere and pyproject.toml does not declare for them."""
    project = _project(root)["project"]
    problems = []
    known = sys.stdlib_module_names | set(packages(root))
    for path in package_files(root):
        place = path.relative_to(root)
        declared = [*project["dependencies"], *filter(None, [PLUGINS.get(str(place))])]
        folders = (EXTRA_OF[str(each)] for each in place.parents if str(each) in EXTRA_OF)
        for extra in OPTIONAL.get(str(place), next(folders, "")).split():
            declared += project["optional-dependencies"].get(extra, [])
        names = {str(canonicalize_name(Requirement(each).name)) for each in declared}
        for each in imports(parse(path)):
            name = INSTALLED_AS.get(each.top, each.top)
            if each.top not in known and str(canonicalize_name(name)) not in names:
                problems.append(f"{place}: imports {each.module} (at {each.line}), which is not declared")
    return problems


def wheel_problems(root: Path) -> list[str]:
    listed = set(_project(root)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    there = set(packages(root))
    problems = [f"{name}/ is not in the wheel" for name in sorted(there - listed)]
    return problems + [f"the wheel lists {name}/, which is not there" for name in sorted(listed - there)]


def test_the_wheel_has_every_package() -> None:
    assert wheel_problems(ROOT) == []


def test_what_is_imported_is_declared() -> None:
    assert import_problems(ROOT) == []


def test_no_text_names_an_installation_from_an_index() -> None:
    """Goal: what an error or a page says works. Method: no index has the package, so no text asks one for an extra."""
    asked = re.compile(r"stream-node\[")
    texts = [
        path
        for folder in (*packages(ROOT), "docs", "examples", "tools", "deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml", ".yml", ".sh"}
    ]
    assert [str(path) for path in [*texts, ROOT / "README.md"] if asked.search(path.read_text(encoding="utf-8"))] == []


def test_the_locks_are_what_is_asked_for() -> None:
    assert lock_problems(ROOT) == []


def test_the_locks_hold_what_they_should() -> None:
    run, dev, docs = (read_lock((ROOT / LOCK_FOLDER / lock).read_text(encoding="utf-8")) for lock in LOCKS)
    assert {"trio", "sqlalchemy", "hatchling"} <= run.keys()
    assert "pytest" not in run
    assert {"pytest", "ruff"} <= dev.keys()
    assert "mkdocs" in docs
    assert "trio" not in docs


PROJECT = """
[project]
dependencies = ["trio>=0.35"]
[project.optional-dependencies]
spark = ["py-spark"]
[dependency-groups]
build = ["hatchling"]
dev = ["pytest"]
docs = ["mkdocs"]
[tool.hatch.build.targets.wheel]
packages = ["bare"]
"""
SHA = "    --hash=sha256:" + "0" * 64
RUN = f"trio==0.35.1 \\\n{SHA}\n    # via stream-node (pyproject.toml)\nhatchling==1.0 \\\n{SHA} \\\n{SHA}\n"
DEV = RUN + f"pytest==9.0 ; sys_platform == 'linux' \\\n{SHA}\n"
DOCS = f"mkdocs==1.6 \\\n{SHA}\n"
SPARK = f"py-spark==4.3 \\\n{SHA}\n    # via stream-node (pyproject.toml)\n"
EXTRAS = {f"{LOCK_FOLDER}/requirements-spark.lock": SPARK, f"{LOCK_FOLDER}/requirements-extras.lock": SPARK}


def planted(run: str, dev: str) -> dict[str, str]:
    """The locks of a small tree: path -> text."""
    texts = {"requirements.lock": run, "requirements-dev.lock": dev, "requirements-docs.lock": DOCS}
    return {f"{LOCK_FOLDER}/{name}": text for name, text in texts.items()}


def test_right_packaging_is_left_alone(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": PROJECT,
        **planted(RUN, DEV),
        **EXTRAS,
        "bare/__init__.py": "import os, trio.testing",
    }
    root = plant(tmp_path, files)
    assert (lock_problems(root), import_problems(root), wheel_problems(root)) == ([], [], [])


@pytest.mark.parametrize(
    ("run", "dev", "problem"),
    [
        (RUN.replace("hatchling", "flit"), DEV, "requirements.lock: hatchling is not pinned"),
        (RUN.replace("0.35.1", "0.34"), DEV, "requirements.lock: 0.34 is pinned, pyproject.toml asks for trio>=0.35"),
        (RUN, DEV + "pybare==1.0 \\\n" + SHA, "requirements-dev.lock: pybare: installs a package"),
        (RUN, DEV + "x==1.0\n", "requirements-dev.lock: x has no hash"),
        (RUN, DEV + "# https://x.example/", "requirements-dev.lock: holds an address or an option"),
        ("--index-url x\n" + RUN, DEV, "requirements.lock: holds an address or an option"),
        (RUN, DEV.replace("0.35.1", "0.36"), "requirements-dev.lock: trio is not 0.35.1, as in requirements.lock"),
        (
            RUN,
            DEV + f"x==1.0 \\\n{SHA}\n    # via\n    #   stream-node (pyproject.toml:dev)",
            "requirements-dev.lock: x 1.0 is pinned, and pyproject.toml no longer asks",
        ),
    ],
)
def test_a_lock_that_does_not_fit_is_found(tmp_path: Path, run: str, dev: str, problem: str) -> None:
    plant(tmp_path, {"pyproject.toml": PROJECT, **planted(run, dev), **EXTRAS})
    assert any(found.startswith(problem) for found in lock_problems(tmp_path))


@pytest.mark.parametrize(
    ("spark", "problem"),
    [
        (f"py4j==0.10 \\\n{SHA}\n", "requirements-spark.lock: py-spark is not pinned"),
        (SPARK.replace(SHA, ""), "requirements-spark.lock: py-spark has no hash"),
        (SPARK + f"pytest==8.0 \\\n{SHA}\n", "requirements-spark.lock: pytest 8.0 is installed beside 9.0"),
    ],
)
def test_a_lock_of_an_extra_that_does_not_fit_is_found(tmp_path: Path, spark: str, problem: str) -> None:
    locks = planted(RUN, DEV) | EXTRAS | {f"{LOCK_FOLDER}/requirements-spark.lock": spark}
    plant(tmp_path, {"pyproject.toml": PROJECT, **locks})
    assert lock_problems(tmp_path) == [problem]


def test_an_import_that_is_not_declared_is_found(tmp_path: Path) -> None:
    texts = {
        "bare/x.py": "import py_spark",
        "spark_export/x.py": "import py_spark, bare",
        "ockam/x.py": "import sniffio",
    }
    found = import_problems(plant(tmp_path, {"pyproject.toml": PROJECT, **texts}))
    assert found == [
        "bare/x.py: imports py_spark (at 1), which is not declared",
        "ockam/x.py: imports sniffio (at 1), which is not declared",
    ]


def test_a_package_that_the_wheel_forgets_or_invents_is_found(tmp_path: Path) -> None:
    plant(tmp_path, {"pyproject.toml": PROJECT, "ockam/__init__.py": ""})
    assert wheel_problems(tmp_path) == ["ockam/ is not in the wheel", "the wheel lists bare/, which is not there"]
