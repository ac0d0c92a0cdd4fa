"""Goal: `stream-node export` says in one line what is missing or wrong. Method: the command, with and without extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import CommandLine

WITHOUT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["stream-node", *{arguments}]
from stream_node.cli.app import main
main()
"""


@pytest.fixture
def here(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command in this process, where the extra is, and whose logs it leaves alone."""
    for module in ("pyarrow", "aiosqlite"):
        pytest.importorskip(module, reason="the extra `export` is not installed")
    monkeypatch.setattr("stream_node.node.logs.configure_logs", lambda level: None)
    return command


def run_without(missing: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where these packages are not installed."""
    program = WITHOUT.format(missing=missing, arguments=arguments)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize("verb", ["run"])
@pytest.mark.parametrize("missing", [{"pyarrow", "aiosqlite"}, {"aiosqlite"}])
def test_without_the_extra_it_says_how_to_get_it(missing: set[str], verb: str, tmp_path: Path) -> None:
    if missing == {"aiosqlite"}:
        pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    done = run_without(missing, "export", verb, str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("stream-node: this command needs the extra `export`")
    assert "-e '.[export]'" in line


def test_other_commands_do_not_need_it() -> None:
    done = run_without({"pyarrow", "aiosqlite", "spark_export"}, "context", "list")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "orc"), "one of parquet, delta, iceberg"),
        (("--pattern", "("), "is not a regular expression"),
        (("--store-option", "x"), "is not a setting: NAME=VALUE"),
        (("--store-option", "secret_key=x"), "a secret is not given as an option"),
        (("--catalog-option", "uri=x"), "need --catalog"),
        (("--catalog", "x", "--format", "delta"), "only tables in the format iceberg have a catalog"),
        (("--schema", "id INT"), "need --decode"),
        (("--decode", "yaml", "--schema", "id INT"), "--decode yaml"),
        (("--decode", "json", "--schema", "Index INT"), "columns of its own named Index"),
        (("--data-dir", "/no/such/folder"), "is no folder"),
        (("--log-level", "loud"), "one of debug, info"),
    ],
)
def test_wrong_usage_is_2_and_touches_nothing(
    here: CommandLine, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    target = tmp_path / "lake"
    assert said in here("export", "run", target, "--nice", "0", *arguments).failed(2)
    assert not target.exists()


def test_a_node_that_is_not_there_is_3(command: CommandLine, tmp_path: Path) -> None:
    for module in ("pyarrow", "aiosqlite"):
        pytest.importorskip(module, reason="the extra `export` is not installed")
    line = command.apart("export", "run", tmp_path / "lake", "--node", "127.0.0.1:1").failed(3)
    assert "127.0.0.1:1" in line


@pytest.mark.parametrize("verb", ["verify", "compact", "files", "history"])
def test_a_folder_without_an_export_is_told(here: CommandLine, tmp_path: Path, verb: str) -> None:
    assert "holds no export" in here("export", verb, tmp_path).failed(1)


def test_a_folder_of_something_else_is_no_place_for_an_export(here: CommandLine, tmp_path: Path) -> None:
    """Goal: a mistyped folder, such as the node's own, gets no files. Method: a folder that has a file."""
    (tmp_path / "streams.sqlite").touch()
    for form in ("parquet", "iceberg"):
        said = here("export", "run", tmp_path, "--format", form, "--nice", "0").failed(1)
        assert "is no export and is not empty, it has streams.sqlite: export into an empty or a new folder" in said
    assert [each.name for each in tmp_path.iterdir()] == ["streams.sqlite"]
