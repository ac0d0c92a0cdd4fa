"""Registers the formats of this project with a Spark session, whose Python processes need not have its packages.

`ship` gives a session a zip with the bytecode of the packages, so that Spark's workers need only pyarrow and msgspec.
The process that plans a streaming query sees no such zip (Spark 4.3). So a data source (`Shipped`) is pickled together
with the path of the zip on its machine. The functions of this module are always pickled by value, for the same reason.
"""

from __future__ import annotations

import copyreg
import marshal
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource

from spark_export.errors import SourceError
from spark_export.session import cache_dir

PACKAGES = (
    *("bare", "block_node", "cardinal_streams", "index_service", "mypy_extensions", "ockam", "pyspark_stream_node"),
    *("spark_export", "stream_client", "stream_service", "stream_storage"),
)
"""The packages in the zip. `mypy_extensions` is a single module of another project that the client imports."""
PYC_HEADER = MAGIC_NUMBER + bytes(12)


def register(spark: Any) -> None:
    """Registers the format `stream_node` with a session, so that `spark.read.format("stream_node")` works.

    Also gives the session a zip with the packages of this project (`spark_export.shipping`), so that the workers need
    only pyarrow and msgspec. A repeated call has no further effect. If this project is installed on the driver and on
    the workers, Spark finds the format without this call.
    """
    from spark_export.source.source import StreamNodeSource

    context = _context_of(spark)
    # Spark on this machine runs its workers with the Python of this process, if the user has chosen none. Otherwise it
    # would take the first python3 of PATH, which can lack pyarrow or have another version.
    if context is not None and context.master.startswith("local"):
        is_chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
        context.pythonExec = context.pythonExec if is_chosen else sys.executable
    register_format(spark, StreamNodeSource)


def register_format(spark: Any, source: type[Shipped]) -> None:
    """Registers another format of this project with a session. A repeated call has no further effect."""
    ship(spark)
    # Spark refuses a name that the active session knows, even if this session does not. A new table makes this session
    # the active one.
    spark.createDataFrame([], "name string")
    try:
        spark.dataSource.register(shipped(source))
    except Exception as error:
        # If this project is installed, Spark finds the format itself. Spark 4.0 then refuses to register its name.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _context_of(spark: Any) -> Any:
    """Returns the context of a session; None for a session of Spark Connect, whose server chooses the Python."""
    from pyspark.sql import SparkSession

    return spark.sparkContext if isinstance(spark, SparkSession) and not hasattr(spark, "_client") else None


def ship(spark: Any) -> None:
    """Gives a session, also one of Spark Connect, the packages of this project. A repeated call has no effect."""
    archive, context = own_archive() or make_archive(), _context_of(spark)
    if context is None:
        spark.addArtifacts(archive, pyfile=True)
    elif Path(archive).name not in context._python_includes:
        context.addPyFile(archive)


class Shipped(DataSource):
    """The base of a data source that is found in each of Spark's Python processes. It has no state but its options."""

    def __reduce__(self) -> Any:
        kind, options = type(self), dict(self.options)
        if getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
            # No module has this class under its name: a function made it. Spark's pickler sends such a class by value.
            return copyreg.__newobj__, (kind,), vars(self)  # type: ignore[attr-defined]
        return restore, (own_archive(), kind.__module__, kind.__qualname__, options)


def shipped(source: type[Shipped]) -> type[DataSource]:
    """Returns a substitute for a data source to register: Spark can unpickle it before it can import this project."""
    where = own_archive() or make_archive(), source.__module__, source.__qualname__
    known = source.name()

    def new(cls: type, options: Any) -> Any:
        return restore(*where, options)

    members = {"__module__": __name__, "__new__": new, "name": classmethod(lambda cls: known)}
    return type(source.__name__, (DataSource,), members)


def restore(archive: str | None, module: str, name: str, options: Mapping[str, str]) -> Any:
    """Returns a data source. archive: the zip with the packages of this project; None without one."""
    import importlib
    import sys

    if archive is not None and module.partition(".")[0] not in sys.modules and archive not in sys.path:
        sys.path.insert(0, archive)
    return getattr(importlib.import_module(module), name)(options=options)


def own_archive() -> str | None:
    """Returns the path of the zip from which this process has imported this project; None if it is installed."""
    spec = find_spec("spark_export")
    found = getattr(spec.loader, "archive", None) if spec is not None else None
    return None if found is None else str(found)


@cache
def make_archive() -> str:
    """Returns the path of a zip with all packages. Raises SourceError if the code of a package cannot be found."""
    sources = {name: path for package in PACKAGES for name, path in _modules(package)}
    digest = sha256(MAGIC_NUMBER + b"".join(name.encode() + path.read_bytes() for name, path in sources.items()))
    folder = cache_dir()
    made = folder / f"stream_node_{digest.hexdigest()[:16]}.zip"
    if not made.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        # Two threads, or two containers with the same process number, may make the zip in one folder at once. The first
        # zip stays: Spark refuses a file that changed after a session got it, and each zip has other time stamps.
        partial = made.with_suffix(f".{uuid4().hex}")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in sources.items():
                code = SourceFileLoader(name, str(path)).get_code(name)
                suffix = "/__init__.pyc" if path.stem == "__init__" else ".pyc"
                archive.writestr(name.replace(".", "/") + suffix, PYC_HEADER + marshal.dumps(code))
        try:
            made.hardlink_to(partial)
        except FileExistsError:
            pass
        except OSError:  # A file system without hard links.
            partial.replace(made)
        partial.unlink(missing_ok=True)
    return str(made)


def _modules(package: str) -> Iterator[tuple[str, Path]]:
    """Yields the name and the file of each module of a package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise SourceError(f"the code of {package} cannot be found, so Spark does not get it; install stream-node")
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        yield package, origin
        return
    for path in sorted(origin.parent.rglob("*.py")):
        parts = path.relative_to(origin.parent.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if path.stem == "__init__" else parts), path


register_pickle_by_value(sys.modules[__name__])

if __name__ == "__main__":
    # A shell takes the path of the zip from the standard output.
    sys.stdout.write(make_archive() + "\n")
