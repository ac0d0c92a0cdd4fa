"""One node and one Spark session for all tests of the source; skips where the extra or Java is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_node.node.process import NodeProcess


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A whole server: the real command, real files, real sockets."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def spark_opener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    """Opens the embedded session, or gives the one that runs, on two cores and with few shuffle partitions."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from spark_export import open_session
    from spark_export.session import JavaMissing, close_session, find_java_home, java_version

    try:
        java_version(find_java_home())
    except JavaMissing as error:
        pytest.skip(str(error))
    folder: Path = tmp_path_factory.mktemp("spark")
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(folder / "warehouse")}
    opened: list[Any] = []

    def open_or_get() -> Any:
        opened.append(open_session("local[2,4]", config=config))
        return opened[-1]

    yield open_or_get
    for session in opened[-1:]:
        close_session(session)


@pytest.fixture
def spark(spark_opener: Callable[[], Any]) -> Any:
    """The session of this process. An exporter with Spark, run in the same process, uses and ends the same session."""
    return spark_opener()
