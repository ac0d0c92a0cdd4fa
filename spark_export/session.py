"""Starts a Spark session: embedded by default, silent and on the loopback interface only. It reads no stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_export import java
from spark_export.registration import register

EMBEDDED = "local[*,4]"
"""All cores, and four tries for a task; `local[*]` alone would give it one."""
LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.register.name = org.apache.spark.sql.execution.datasources.v2.python
logger.register.level = error
logger.manager.name = org.apache.spark.sql.execution.python.DataSourceManager
logger.manager.level = error
logger.manager2.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.manager2.level = error
"""
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
AOT_JAVA_MIN = 25


def open_session(
    master: str = EMBEDDED,
    *,
    remote: str | None = None,
    name: str = "stream-node",
    config: Mapping[str, str] | None = None,
    aot_cache: Path | None = None,
) -> Any:
    """A SparkSession with `stream_node` registered. Raises JavaMissing.

    master: as Spark's own; only one that begins with `local` is embedded, which is silent, bound to the loopback
    interface, and runs on the Java that `java.find_java_home` finds. remote: `sc://host:port` in its place.
    config: Spark's settings, over ours. aot_cache: a file that keeps the classes Spark loads at the start (Java 25
    or newer; others ignore it): written when a session with it ends and it does not exist, used when it does. It
    halves the time of a start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
        settings = {"spark.sql.session.timeZone": "UTC"}
    else:
        builder = builder.master(master)
        settings = dict(QUIET) | (_embedded(aot_cache) if is_embedded(master) else {})
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def is_embedded(master: str) -> bool:
    """Whether Spark runs on this machine alone, in processes of our own."""
    return master.startswith("local")


def _embedded(aot_cache: Path | None) -> dict[str, str]:
    home = java.find_java_home()
    os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    options = [f"-Dlog4j2.configurationFile=file:{_ensure_log4j(java.cache_dir())}"]
    if aot_cache is not None and java.java_version(home) >= AOT_JAVA_MIN:
        aot_cache.parent.mkdir(parents=True, exist_ok=True)
        # The JVM warns about its cache on standard output, which belongs to the command that runs it.
        options += [f"-XX:{'AOTCache' if aot_cache.exists() else 'AOTCacheOutput'}={aot_cache}", "-Xlog:disable"]
    return LOOPBACK | {"spark.driver.extraJavaOptions": " ".join(options)}


def _ensure_log4j(directory: Path) -> Path:
    """The settings of Spark's log as a file. Given by an option of the JVM, since a SPARK_CONF_DIR on the class path
    would make the class cache unusable."""
    path = directory / "log4j2.properties"
    if not path.exists() or path.read_text(encoding="utf-8") != LOG4J:
        directory.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_text(LOG4J, encoding="utf-8")
        made.replace(path)
    return path
