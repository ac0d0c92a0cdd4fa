"""What every test may use: the folder of specifications and vectors, Hypothesis profiles, and quiet logs; and how
child processes start.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import structlog
from hypothesis import Phase, configuration, settings

from ockam.transport import connection_machine
from tests.support.compiled import IS_COMPILED, REPLACED, skip_patches_of_compiled, skipped

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

REPOSITORY = Path(__file__).resolve().parents[1]

# Importing thousands of tests makes little garbage, and looking for it takes as long as the import. The collector runs
# again as soon as all tests are collected (`pytest_runtestloop`).
gc.disable()

# Outside the tree, so that a test run leaves nothing in it; per user, since /tmp is shared. Failing examples are kept
# there and tried first the next time.
configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / f"stream-node-hypothesis-{os.getuid()}")

# No deadline: the machines that run this are shared, and a slow example is not a wrong one.
settings.register_profile("dev", deadline=None, print_blob=True)
# The same examples each time: a change is judged by what it changed. New examples are looked for by `dev` and `soak`.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
# For tools/mutants.py, which asks whether a test fails, and not for the smallest example.
settings.register_profile("mutants", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Hundreds of children would compile the same modules, each for a fifth of a second or more. What they compile they
    # share, outside the tree; in a folder of this run's own, since nobody else is to write what they execute.
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="stream-node-bytecode-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)

if IS_COMPILED:
    skip_patches_of_compiled()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Puts the reason back into the report of a test that was skipped inside trio, where pytest-trio loses it."""
    report = yield
    if report.skipped and item.nodeid in skipped:
        report.longrepr = (str(item.path), 0, f"Skipped: {REPLACED}")
    return report


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so; tests send SIGINT to themselves and to children, which inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # `nohup` starts what it runs so. With a handler, this process outlives its terminal, and children have the default.
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


SOAK_S_MAX = float(os.environ.get("SOAK_S_MAX", "3600"))
"""Of one soak test."""
BEGIN_UNTIL_S = float(os.environ.get("BEGIN_UNTIL_S", "inf"))
"""Tests that would begin later than at this Unix time are skipped: CI is bounded so, also on a slow machine."""
SKIPPED_FILES = os.environ.pop("SKIPPED_FILES", "")
"""A file that gets the names of the files in which something was skipped; not for a pytest that a test starts."""

SPARK_S_MAX = 600.0
"""Of one test of Spark. A test that ends in the middle of a call to the JVM spoils the session for all after it."""


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None]:
    """Forks the processes of a parallel run of all tests from one that has imported them all."""
    if not forks_processes(session.config):
        return (yield)
    from tests.support.forked_workers import WorkerPopen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", WorkerPopen)
        yield
    WorkerPopen.close()


def forks_processes(config: pytest.Config) -> bool:
    """Whether a run has all tests, and a system on which a process may become the child of another: only Linux."""
    given = {config.invocation_params.dir / each for each in config.args}
    return sys.platform == "linux" and given == {REPOSITORY / each for each in config.getini("testpaths")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SOAK_S_MAX))
        elif item.nodeid.startswith("tests/spark_export/") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_S_MAX))
    if hasattr(config, "workerinput"):
        # What takes long begins first: otherwise one file is left over for the end, alone. All processes must come to
        # the same order.
        first = {scope: place for place, scope in enumerate(LONG_SCOPES)}
        items.sort(key=lambda item: first.get(scope_of(item.nodeid), len(first)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exempts from Python's garbage collector what has been imported until now; no test makes garbage of it.

    Otherwise each `gc.collect` of a test would look through hundreds of thousands of objects of other tests.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def scope_of(nodeid: str) -> str:
    """In parallel, the tests of one scope run in one process: those of a file, and those that share a Spark session."""
    path = nodeid.partition("::")[0]
    return next((scope for scope, files in SPARK_SCOPES.items() if files.search(path)), path)


SPARK_SCOPES = {
    "spark": re.compile(
        r"^tests/spark_export/((sink/)?test_spark_|test_(kafka_jobs|node_restarts|reading_page|tls|tokens)\.)"
    ),
    "spark 2": re.compile(
        r"^tests/spark_export/(decode/test_(json_|avro_)?decoding|test_(ranges|sql_)|exporter/test_application)"
    ),
    "spark 3": re.compile(r"^tests/spark_export/pipeline/test_(cardinal|increments|odd_chain|pipeline\.)"),
}
"""Files whose tests share a session: every process that has one has a Java process of its own."""


LONG_SCOPES = (
    *SPARK_SCOPES,
    "tests/spark_export/exporter/test_crashes.py",
    "tests/stream_node/fleet/mirror/test_promotion.py",
    "tests/stream_node/fleet/mirror/test_parting.py",
    "tests/stream_node/fleet/workers/test_workers.py",
    "tests/black_box/test_demo.py",
    "tests/spark_export/test_bulk.py",
    "tests/spark_export/exporter/test_stopping.py",
    "tests/block_node/backfill/test_processes.py",
    "tests/index_service/test_lease_model.py",
    "tests/stream_storage/test_storage_crash.py",
    "tests/black_box/test_commands.py",
    "tests/black_box/test_stopping.py",
    "tests/test_pages.py",
    "tests/service/test_three_answers.py",
    "tests/stream_node/fleet/mirror/test_rights.py",
    "tests/stream_node/fleet/mirror/test_following.py",
    "tests/bench/test_bench_runs.py",
    "tests/client/test_typed_from_outside.py",
    "tests/stream_node/fleet/cluster/test_cluster_simulation.py",
    "tests/test_examples.py",
    "tests/ockam/identity/rules/test_acts.py",
    "tests/stream_storage/test_storage_disk.py",
    "tests/stream_storage/test_upgrade.py",
    "tests/power/test_power_cuts.py",
    "tests/simulation/test_block_simulation.py",
    "tests/simulation/test_backfill_simulation.py",
    "tests/simulation/test_canaries.py",
    "tests/simulation/test_simulation.py",
    "tests/cardinal_streams/test_kills.py",
    "tests/test_readme.py",
    "tests/style/test_optional_imports.py",
    "tests/style/test_reference.py",
    "tests/limits/test_limits.py",
    "tests/stream_storage/test_storage_model.py",
    "tests/bare/test_properties.py",
    "tests/block_node/blocks/test_flipped_bytes.py",
    "tests/tokens/test_outgoing.py",
)
"""Those that take longest, or wait longest, as `--durations=0` said. The longest begins first."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three processes for each core (`-n auto`): half of the time, tests wait for something else than the processor."""
    return min(3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4, WORKERS_MAX)


WORKERS_MAX = 8
"""More of them would spend more on collecting the tests than they save."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole scopes go to the processes, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    scheduler: Any = LoadScopeScheduling(config, log)
    scheduler._split_scope = scope_of
    return scheduler


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was skipped, and why; and adds the files with something skipped to the file SKIPPED_FILES."""
    # The processes of a parallel run have a summary each, too; that of the first process has all tests.
    if hasattr(terminalreporter.config, "workerinput"):
        return
    skipped = terminalreporter.stats.get("skipped", [])
    reasons: dict[str, Counter[str]] = {}
    for report in skipped:
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        reasons.setdefault(reason, Counter())["test" if "::" in report.nodeid else "whole file"] += 1
    if reasons:
        terminalreporter.section("skipped", sep="-")
    for reason, counts in sorted(reasons.items(), key=lambda each: -each[1].total()):
        told = (f"{count} {what}{'s' if count > 1 else ''}" for what, count in sorted(counts.items()))
        terminalreporter.line(f"{', '.join(told)}: {reason}")
    if SKIPPED_FILES:
        # Names of tests would not do: pytest's --last-failed does not find those that have passed.
        names = sorted({report.nodeid.partition("::")[0] for report in skipped})
        with Path(SKIPPED_FILES).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in names)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > BEGIN_UNTIL_S:
        pytest.skip("the time in which tests begin (BEGIN_UNTIL_S) is over")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """`../shared`: specifications, captured vectors, real data. Skips where the repository stands alone."""
    directory = REPOSITORY.parent / "shared"
    if not (directory / "specs").is_dir():
        pytest.skip(f"no specifications and vectors beside the repository ({directory})")
    return directory


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that does not sync, for tests that make thousands of commits."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    from tests.support.postgres import PostgresServer

    with PostgresServer({"fsync": "off", "full_page_writes": "off"}) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def each_database(request: pytest.FixtureRequest) -> Iterator[None]:
    """For tests whose nodes keep their promises on every kind of database (`tests/support/databases.py`)."""
    if request.param == "sqlite":
        yield
        return
    server = request.getfixturevalue("postgres_server")
    from tests.support.databases import on_postgres

    with on_postgres(server):
        yield


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node in this process lets go sooner of a peer that leaves, where nothing is on its way to it."""
    monkeypatch.setattr(connection_machine, "LINGER_QUIET_S", 0.1)


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    """Log lines go nowhere; a test that expects one asks `structlog.testing.capture_logs` for it."""
    structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
    yield
    if structlog.get_config()["cache_logger_on_first_use"]:
        # Loggers that were used meanwhile are bound for good, so that later tests would capture nothing of them.
        pytest.fail("this test has configured the logs of the whole process: run the command in a child (`apart`)")


FORKED = (
    *("tests/bench/test_cluster_bench.py", "tests/bench/test_postgres_bench.py"),
    *("tests/black_box/test_hang_up_of_workers.py", "tests/black_box/test_node_on_postgres.py"),
    *("tests/black_box/test_notify.py", "tests/black_box/test_reload.py"),
    *("tests/block_manager/", "tests/block_node/", "tests/cardinal_streams/", "tests/cli/", "tests/client/"),
    *("tests/deploy/", "tests/limits/", "tests/metrics/", "tests/ockam/", "tests/service/"),
    *("tests/stream_node/doors/dashboard/", "tests/stream_node/doors/http/"),
    "tests/stream_node/fleet/",
    *("tests/stream_storage/test_upgrade.py", "tests/test_examples.py", "tests/tls/", "tests/tokens/"),
)
"""Folders and files whose tests need nodes and commands, but no interpreter for each (`tests/support/forked.py`)."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Nodes and commands of these tests, and of their fixtures, are forked from one process: only on Linux."""
    if not item.nodeid.startswith(FORKED) or sys.platform != "linux":
        return (yield)
    from tests.support.forked import ForkedPopen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", ForkedPopen)
        return (yield)


def _drop(_logger: object, _method: str, _event: object) -> NoReturn:
    raise structlog.DropEvent
