"""Goal: the definitions of `examples/pipeline` can be called, also where no soak test runs.

Method: the file itself, with stand-ins for Spark's declarative pipelines and for its session.
"""

from __future__ import annotations

import runpy
import sys
from types import ModuleType
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark_export.spark_connect import ROOT


def test_the_bronze_table_of_the_example_reads_our_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    session, pipelines = MagicMock(), ModuleType("pyspark.pipelines")
    vars(pipelines).update(
        table=lambda **options: lambda made: made, materialized_view=lambda **options: lambda made: made
    )
    monkeypatch.setattr(sys.modules["pyspark"], "pipelines", pipelines, raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", pipelines)
    monkeypatch.setattr(SparkSession, "active", lambda: session)
    monkeypatch.setattr(f, "lit", lambda value: value)
    runpy.run_path(str(ROOT / "examples/pipeline/transformations/tables.py"))["bronze"]()
    (options,) = [call.kwargs for call in session.readStream.format.return_value.options.mock_calls if call.kwargs]
    assert options["columns"] == "stream"
    assert options["endpoint"] == "env:STREAM_NODE_ADDRESS"
