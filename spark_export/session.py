"""Starts a Spark session: embedded by default, silent and on the loopback interface only. It reads no stream."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_export import java
from spark_export.errors import SourceError
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
logger.task.name = org.apache.spark.TaskContextImpl
logger.task.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.register.name = org.apache.spark.sql.execution.datasources.v2.python
logger.register.level = error
logger.manager.name = org.apache.spark.sql.execution.python.DataSourceManager
logger.manager.level = error
logger.manager2.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.manager2.level = error
"""
"""What fails in a task is raised where the job is waited for, with the same trace-back: it is not printed as well."""
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
AOT_JAVA_MIN = 25
CONNECT_PARTS = ("grpc", "grpc_status", "pandas")
"""Of the extra `spark-connect`."""
SPARKS_PACKAGES = ("pyspark", "py4j", "grpc")
CONNECT_PORT = 15002
"""Spark's default."""
CONNECT_TIMEOUT_S = 10.0


class SparkUnavailable(SourceError):
    """Spark could not be started, or a Connect server not be reached."""


def open_session(
    master: str = EMBEDDED,
    *,
    remote: str | None = None,
    name: str = "stream-node",
    config: Mapping[str, str] | None = None,
    aot_cache: Path | None = None,
) -> Any:
    """A SparkSession with `stream_node` registered. Raises JavaMissing, SparkUnavailable.

    master: as Spark's own; only one that begins with `local` is embedded, which is silent, bound to the loopback
    interface, and runs on the Java that `java.find_java_home` finds. remote: `sc://host:port` in its place.
    config: Spark's settings, over ours. aot_cache: a file that keeps the classes Spark loads at the start (Java 25
    or newer; others ignore it): written when a session with it ends and it does not exist, used when it does. It
    halves the time of a start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if remote is not None:
        _require_connect(remote)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
        settings = {"spark.sql.session.timeZone": "UTC"}
    else:
        builder = builder.master(master)
        settings = QUIET | _driver(aot_cache) | (_embedded() if is_embedded(master) else {})
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    where = remote or master
    try:
        session = builder.getOrCreate()
        if remote is None:
            _hush_accumulators(session)
        register(session)
    except Exception as error:
        if not is_sparks(error):
            raise
        if remote is None:
            # Where Java is too old or cannot be run, that says so better than Spark does.
            java.java_version(Path(os.environ["JAVA_HOME"]))
        hint = "" if is_embedded(where) else f"; is {where} there, and is this machine allowed to use it?"
        raise SparkUnavailable(f"Spark did not start: {first_line(error)}{hint}") from error
    return session


def close_session(session: Any) -> None:
    """Stop it, also where its JVM has died; another can be opened then. Safe where it has stopped by itself."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    try:
        with warnings.catch_warnings():
            # That the JVM is gone is no news to who closes the session for it.
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    except Exception as error:
        if not is_sparks(error):
            raise
        # What PySpark keeps of the dead JVM would be taken for a live one by the next session.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def is_sparks(error: BaseException) -> bool:
    """Whether it came from Spark, or from the connection to it."""
    packages = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    return not packages.isdisjoint(SPARKS_PACKAGES) or isinstance(error, ConnectionError | EOFError)


def first_line(error: BaseException) -> str:
    """What Spark says, without the traces that it adds."""
    java_error = getattr(error, "java_exception", None)
    text = str(error) if java_error is None else str(error).partition("\n: ")[2] or str(error)
    return next((" ".join(line.split()) for line in text.splitlines() if line.strip()), type(error).__name__)


def _hush_accumulators(session: Any) -> None:
    """Where the JVM dies, its thread would print a trace-back; whoever waits for Spark tells of that in words."""
    session.sparkContext._accumulatorServer.handle_error = lambda request, client_address: None


def is_embedded(master: str) -> bool:
    """Whether Spark runs on this machine alone, in processes of our own."""
    return master.startswith("local")


def _require_connect(remote: str) -> None:
    """Raises SparkUnavailable where a client's packages are missing, or nobody listens at that address."""
    missing = [name for name in CONNECT_PARTS if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailable(
            f"Spark Connect needs {', '.join(missing)}: pip install 'stream-node[spark,spark-connect]'"
        )
    try:
        place = urlsplit(remote)
        # Spark's client itself tries for ten minutes before it says so.
        address = (place.hostname or "", place.port or CONNECT_PORT)
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(f"cannot reach a Spark Connect server at {remote}: {error}") from error


def _driver(aot_cache: Path | None) -> dict[str, str]:
    """The JVM of the driver, which is a child of this process whatever the master is."""
    home = java.find_java_home()
    os.environ["JAVA_HOME"] = str(home)
    options = [f"-Dlog4j2.configurationFile=file:{_ensure_log4j(java.cache_dir())}"]
    if aot_cache is not None and java.java_version(home) >= AOT_JAVA_MIN:
        aot_cache.parent.mkdir(parents=True, exist_ok=True)
        # The JVM warns about its cache on standard output, which belongs to the command that runs it.
        options += [f"-XX:{'AOTCache' if aot_cache.exists() else 'AOTCacheOutput'}={aot_cache}", "-Xlog:disable"]
    return {"spark.driver.extraJavaOptions": " ".join(options)}


def _embedded() -> dict[str, str]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return LOOPBACK


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
