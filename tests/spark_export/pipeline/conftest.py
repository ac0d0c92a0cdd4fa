"""A session for tables of a few rows, for which Spark's preparations are most of the time."""

from __future__ import annotations

from typing import Any

import pytest

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="module")
def session(spark_opener: Any) -> Any:
    session = spark_opener().newSession()
    for name, value in SMALL.items():
        session.conf.set(name, value)
    return session
