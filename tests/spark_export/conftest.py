"""One node and one Spark session for all tests of the source; skips where the extra or Java is absent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream_node.process import NodeProcess


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A whole server: the real command, real files, real sockets."""
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The embedded session, as a user opens it, on two cores and with few shuffle partitions."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    from spark_export import java, open_session

    try:
        java.java_version(java.find_java_home())
    except java.JavaMissing as error:
        pytest.skip(str(error))
    folder: Path = tmp_path_factory.mktemp("spark")
    session = open_session(
        "local[2,4]",
        config={"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(folder / "warehouse")},
    )
    yield session
    session.stop()
