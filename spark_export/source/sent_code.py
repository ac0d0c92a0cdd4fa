"""Sends modules of this project to the Python processes of Spark, which need not have this project installed.

The bytecode of the modules is compressed into one byte string, the bundle. Each pickled object that needs the modules
contains the bundle. A process of Spark loads a bundle once, and executes a module of the bundle when the module is
first imported. The names of the imported modules begin with the name of the bundle, so that several versions of this
project can be used in one process. Bytecode is valid for one version of Python only, but Spark demands the same version
anyway.

The alternative, `cloudpickle.register_pickle_by_value`, walks through all functions at each pickling and makes all of
them again at each unpickling. That took longer than reading a hundred thousand messages.
"""

from __future__ import annotations

import marshal
import pickle
import sys
import zlib
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import DataSource

from spark_export.errors import SourceError

NAME = "stream_node_sent_"
"""The beginning of the name below which the modules of a bundle are imported. The digest of the bundle follows."""
LOADER = "spark_export.source.sent_loader"


class Bundle(NamedTuple):
    """Compressed modules to send; they are imported below `name`."""

    name: str
    code: bytes


class _State:
    """Whether this process sends modules with each `Sendable`, and the bundle from which this module was loaded, if
    any."""

    is_sending = False
    own: Bundle | None = None


def send_modules() -> None:
    _State.is_sending = True
    register_pickle_by_value(sys.modules[__name__])


def set_own_bundle(name: str, code: bytes) -> None:
    """Tells this module that it was loaded from a bundle. `sent_loader` calls this function."""
    _State.own = Bundle(name, code)
    register_pickle_by_value(sys.modules[__name__])


@lru_cache(maxsize=8)
def make_bundle(modules: tuple[str, ...]) -> Bundle:
    """Returns these modules as a bundle. Raises SourceError if the code of a module cannot be found."""
    table = {}
    for each in (LOADER, *modules):
        spec = find_spec(each)
        code = getattr(spec.loader, "get_code", lambda name: None)(each) if spec is not None else None
        if code is None:
            raise SourceError(f"the code of {each} cannot be found, so Spark does not get it; install this project")
        table[each] = marshal.dumps(code)
    code = zlib.compress(marshal.dumps(table))
    return Bundle(NAME + sha256(code).hexdigest()[:16], code)


class Sendable:
    """The base of a class whose instances are sent to the Python processes of Spark together with their modules.

    Before a call of `send_modules`, an instance is pickled like any other object, without modules.

    modules: the names of all modules of this project that an instance needs.
    follows: whether an instance is pickled without its modules. Set it only if each process that unpickles an instance
        has unpickled another object with the same modules before.
    """

    modules: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[bool] = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(self)
        found: Any = sys.modules.get(kind.__module__)
        if not (_State.is_sending or _State.own) or getattr(found, kind.__qualname__, None) is not kind:
            # A class that is not found by its name, such as one of a function, can only be pickled by Spark itself.
            return super().__reduce_ex__(protocol)
        name, code = _State.own or make_bundle(kind.modules)
        return restore, (name, None if self.follows else code, pickle.dumps((kind, self.__dict__)))


def sent_class(source: type[DataSource]) -> type[DataSource]:
    """Returns a substitute for a `Sendable` data source, which Spark can unpickle without this project."""
    bundle = make_bundle(source.modules)
    content = pickle.dumps(source)

    def new(cls: type, options: Any) -> Any:
        return restore(bundle.name, bundle.code, content)(options=options)

    known = source.name()
    members = {"__module__": __name__, "__new__": new, "name": classmethod(lambda cls: known)}
    return type(source.__name__, (DataSource,), members)


def restore(name: str, code: bytes | None, content: bytes) -> Any:
    """Loads the modules of a bundle, and returns the unpickled `content`.

    Spark receives the code of this function alone, so the function uses no other function of this project.

    name, code: the bundle; `code` can be None if the process has loaded the bundle before.
    content: a pickled class, which is returned; or a pickled pair of a class and attributes, from which an instance is
        made.
    """
    bundle: Any = sys.modules.get(name)
    if bundle is None:
        if code is None:
            raise ImportError(f"the modules {name} were not sent to this process of Spark")
        table = marshal.loads(zlib.decompress(code))
        loader: dict[str, Any] = {"__name__": f"{name}.loader"}
        exec(marshal.loads(table["spark_export.source.sent_loader"]), loader)
        bundle = loader["load_bundle"](name, code, table)
    return bundle.restored(content)
