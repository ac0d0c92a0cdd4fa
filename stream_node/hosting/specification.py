"""WorkerSpec: one of the operator's own workers, as the settings or a program name it.
This module loads the class of a worker, and starts nothing.

As text: MODULE:CLASS@ADDRESS, or NAME@ADDRESS for an entry point of the group stream_node.workers, with
?OPTION=VALUE&… for the options of its constructor. In a file of settings, a table:

    [workers]
    echo = "my.module:Echo"

    [workers.enrich]
    class = "my.module:Enrich"
    source = "orders"
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from ockam.actors.async_worker import AsyncWorker
from ockam.actors.worker import ALWAYS, Restarts, Worker
from ockam.identity.rules.rights import RIGHT_NAMES, Demand, Right
from stream_node.node.config import Config, ConfigError

ENTRY_POINTS = "stream_node.workers"
"""The group of the entry points by which installed packages offer workers. None is started unless it is named."""
CLASS_KEY = "class"
RESERVED = (
    *("ST_S_", "TCP_", "MI_", "MP_", "BF_", "gather_", "FWD_", "forward", "STB_"),
    *("node_", "block_", "cluster", "stream_", "mirror", "secure_channel", "static_forward", "worker_"),
)
"""The beginnings of addresses that belong to the node itself."""
_ADDRESS = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FORM = "write MODULE:CLASS@ADDRESS, such as my.module:Echo@echo"

MakeWorker = Callable[..., Worker]


class WorkerSpec(msgspec.Struct, frozen=True):
    """One worker. code: MODULE:CLASS, the name of an entry point, or a class or function that makes the worker."""

    address: str
    code: str | MakeWorker
    options: dict[str, Any] = {}


class LoadedWorker(msgspec.Struct, frozen=True):
    """A worker that can be started. make: makes a new object, at the start and after each crash.
    demand: the right that a sender needs; None: the worker decides by a method `demand` of its own.
    restarts: when the worker is started again after its end."""

    address: str
    make: Callable[[], Worker]
    demand: Demand | None
    restarts: Restarts

    @property
    def takes_routed(self) -> bool:
        """Whether it can take messages for which a sender needs no other right than `route`."""
        return self.demand is None or self.demand.rights == Right.ROUTE


def parse_worker(text: str) -> WorkerSpec:
    """Reads the text of a worker. Raises ConfigError."""
    named, _, query = text.partition("?")
    code, at, address = named.rpartition("@")
    if not at and ":" not in named:
        # An entry point may stand alone. Its name is then the address, too.
        code = address = named
    if not code or not address:
        raise ConfigError(f"worker: {text!r} has no class or no address; {_FORM}")
    return WorkerSpec(address, code, {name: _value(each) for name, each in parse_qsl(query, keep_blank_values=True)})


def worker_text(address: str, value: Any) -> str:
    """Returns the text of a worker in the table `[workers]` of a file of settings. Raises ConfigError."""
    options = dict(value) if isinstance(value, dict) else {CLASS_KEY: value}
    code = options.pop(CLASS_KEY, None)
    if not isinstance(code, str) or not code:
        raise ConfigError(f'worker: [workers] {address} has no class; write {address} = "MODULE:CLASS"')
    # A text that would be read as another value, such as "100", gets quotation marks.
    texts = {
        name: each if isinstance(each, str) and _value(each) == each else json.dumps(each, default=str)
        for name, each in options.items()
    }
    return f"{code}@{address}" + (f"?{urlencode(texts)}" if texts else "")


def load_workers(config: Config, of_program: Mapping[str, str | MakeWorker] | None = None) -> list[LoadedWorker]:
    """Loads the workers of the settings, and those that a program gives its server, by address. Constructs none.
    Raises ConfigError with all mistakes."""
    loaded: dict[str, LoadedWorker] = {}
    mistakes: list[str] = []
    specs: list[WorkerSpec] = [WorkerSpec(address, code) for address, code in (of_program or {}).items()]
    for text in config.worker:
        try:
            specs.append(parse_worker(text))
        except ConfigError as error:
            mistakes += error.mistakes
    for spec in specs:
        try:
            check_address(spec.address, config, loaded)
            loaded[spec.address] = _load(spec)
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(*mistakes)
    return list(loaded.values())


def check_address(address: str, config: Config, taken: Iterable[str]) -> None:
    """Raises ConfigError if a worker cannot have this address."""
    of_services = (*config.service_addresses, *config.index_addresses, *config.secure_channel_addresses)
    if not _ADDRESS.fullmatch(address):
        raise ConfigError(f"worker: the address {address!r} is not 1 to 64 letters, digits, '.', '_' and '-'")
    if address.startswith(RESERVED) or address in of_services:
        raise ConfigError(f"worker: the address {address!r} belongs to the node itself; choose another one")
    if address in taken:
        raise ConfigError(f"worker: two workers have the address {address!r}; give one of them another one")


def _load(spec: WorkerSpec) -> LoadedWorker:
    made = spec.code if callable(spec.code) else _import(spec.code)
    what = spec.code if isinstance(spec.code, str) else getattr(made, "__qualname__", repr(made))
    if isinstance(made, type) and (not issubclass(made, Worker) or made in (Worker, AsyncWorker)):
        raise ConfigError(f"worker: {what} is no worker; derive the class from ockam.Worker or ockam.AsyncWorker")
    # The names of the options are compared with the parameters now, and not only when the worker is made.
    try:
        inspect.signature(made).bind(**spec.options)
    except TypeError as error:
        raise ConfigError(f"worker: {what} at {spec.address} does not take these options: {error}") from error
    except ValueError:
        pass  # A class written in C has no signature to compare with.
    demand = None
    if not hasattr(made, "demand"):
        # A class declares its right, with the name after a colon if it is not the address.
        declared = getattr(made, "right", "route")
        right, colon, name = str(declared).partition(":")
        if right not in RIGHT_NAMES:
            raise ConfigError(
                f"worker: the class at {spec.address} declares the right {declared!r}, which is none; there are "
                f"{', '.join(RIGHT_NAMES)}"
            )
        demand = Demand(RIGHT_NAMES[right], name if colon else spec.address)
    return LoadedWorker(spec.address, lambda: made(**spec.options), demand, getattr(made, "restarts", ALWAYS))


def _import(code: str) -> MakeWorker:
    module, colon, name = code.partition(":")
    if not colon:
        from importlib.metadata import entry_points

        found = list(entry_points(group=ENTRY_POINTS, name=code))
        if not found:
            offered = ", ".join(sorted({each.name for each in entry_points(group=ENTRY_POINTS)})) or "none"
            raise ConfigError(f"worker: no installed package offers a worker {code!r}; there are: {offered}; {_FORM}")
        module, _, name = found[0].value.partition(":")
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"worker: there is no module {error.name!r} for {code!r}; install it, or name its folder in PYTHONPATH"
            ) from error
        raise ConfigError(f"worker: the module {module!r} cannot be imported: {error}") from error
    except Exception as error:
        raise ConfigError(f"worker: the module {module!r} cannot be imported: {error!r}") from error
    made = getattr(imported, name, None)
    if not isinstance(made, type):
        raise ConfigError(f"worker: the module {module!r} has no class {name!r}; correct the name in {code!r}")
    return made


def _value(text: str) -> Any:
    """Returns the value of an option: its text read as JSON, such as a number or `true`, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
