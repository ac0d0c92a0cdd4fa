"""What `spark_export.source.sent_code` sends to Spark is whole and small, and stays apart from other versions.

Not shown here: that Spark's processes load it, as tests/spark_export/test_by_value.py and every test with Spark show.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark import cloudpickle

from spark_export.errors import SourceError
from spark_export.exporter.runs.spark_tasks import ExportSource
from spark_export.registration import send_by_value
from spark_export.source.options import read_options
from spark_export.source.readers import BatchReader
from spark_export.source.sent_code import LOADER, make_bundle, sent_class
from spark_export.source.sent_modules import SOURCE_MODULES, TASK_MODULES
from spark_export.source.source import StreamNodeSource

ROOT = Path(__file__).resolve().parents[2]
WARNED_BYTES = 1000 * 1024
"""The size of a task above which Spark prints a warning (`TaskSetManager.TASK_SIZE_TO_WARN_KIB`)."""
OPTIONS = {"endpoint": "127.0.0.1:1", "subscribe": "orders"}

WORKER = """
import pickle, sys
from spark_export.source import readers
made = [pickle.loads(bytes.fromhex(line)) for line in sys.stdin]
print(len({readers.BatchReader, *map(type, made)}), *(type(each).__name__ for each in made))
"""


def imported(name: str) -> Iterator[str]:
    """The modules of this project that a module names in an import, also inside its functions."""
    for node in ast.walk(ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if (ROOT / f"{each.replace('.', '/')}.py").is_file():
                    yield each


@pytest.mark.parametrize(
    ("root", "listed"),
    [("spark_export.source.source", SOURCE_MODULES), ("spark_export.exporter.runs.spark_tasks", TASK_MODULES)],
)
def test_the_listed_modules_are_those_that_are_imported(root: str, listed: tuple[str, ...]) -> None:
    """Goal: no module is forgotten, and none is sent in vain. Method: the imports in the sources, followed from the
    module that Spark imports first. Of `storage`, only the modules that are listed are sent: the check of the log is
    left out where `storage` is not installed."""
    found, waiting = set[str](), [root]
    while waiting:
        name = waiting.pop()
        if name not in found and (name.startswith("spark_export.") or name in listed):
            found.add(name)
            waiting += imported(name)
    assert sorted(listed) == sorted(found)


def test_what_is_sent_is_far_smaller_than_what_spark_warns_of() -> None:
    """Goal: Spark prints no warning about large tasks. Method: the classes, and a reader with the data source, which
    a task has both, pickled as Spark pickles them."""
    send_by_value()
    reader = BatchReader(read_options(OPTIONS))
    task = cloudpickle.dumps((reader, StreamNodeSource(options=OPTIONS)))
    for sent in (task, cloudpickle.dumps(sent_class(StreamNodeSource)), cloudpickle.dumps(sent_class(ExportSource))):
        assert len(sent) < WARNED_BYTES / 3


def test_two_versions_are_used_in_one_process_beside_an_installed_one() -> None:
    """Goal: programs with different versions share the workers of one Spark server. Method: a second version with
    another list of modules, both unpickled in one process that has imported this project."""
    send_by_value()
    code = (
        "import sys; from pyspark import cloudpickle; import spark_export.source.sent_modules as m;"
        "m.SOURCE_MODULES = ('spark_export.source.patterns', *m.SOURCE_MODULES[1:], 'spark_export.source.bulk_pages');"
        "from spark_export.registration import send_by_value; from spark_export.source.options import read_options;"
        "from spark_export.source.readers import BatchReader; send_by_value();"
        f"print(cloudpickle.dumps(BatchReader(read_options({OPTIONS!r}))).hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    own = cloudpickle.dumps(BatchReader(read_options(OPTIONS))).hex() + "\n"
    worker = [sys.executable, "-c", WORKER]
    done = subprocess.run(worker, cwd=ROOT, input=own + other, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3", "BatchReader", "BatchReader"], done.stderr


def test_a_module_without_code_is_refused() -> None:
    """Goal: a frozen or stripped installation is told at once, and not by a worker."""
    with pytest.raises(SourceError, match=r"spark_export\.nothing cannot be found"):
        make_bundle(("spark_export.nothing",))
    assert LOADER not in SOURCE_MODULES
