"""Reads the settings of a node from flags, `STREAM_NODE_…` variables and a TOML file, and checks them together."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from block_node.grpc.limits import read_services
from ockam.actors.address import complete_address, split_host_port
from ockam.errors import InvalidAddress
from ockam.files.parsing import ParseError, parse_toml
from stream_node.care.patience import parse_stuck_after
from stream_node.cli.values import UsageError, parse_duration, parse_size
from stream_node.hosting.specification import load_workers, worker_text
from stream_node.node.config import (
    ENVIRONMENT_PREFIX,
    FIELDS,
    LOG_LEVELS,
    Config,
    ConfigError,
    mistakes_in,
    unknown_variables,
)
from stream_node.node.identity.access import check_exposure, check_rules
from stream_node.node.identity.channel_services import check_settings as check_channel_settings
from stream_node.node.identity.tls_settings import check_settings as check_tls_settings
from stream_node.node.identity.token_services import make_outgoing_tokens
from stream_service.names import near_names

BACKFILL_TABLE = "backfill"
WORKERS_TABLE = "workers"
PROCESSES_KEY = "processes"
NAME_CHARS_MAX = 64
_MEMBER_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}(-w[0-9]{{2}})?")
"""Matches the name of a member: the setting `cluster`, and the name of the worker if the member is one of several."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CAPITAL = re.compile("[A-Z]")
_TIME = re.compile(r"(_s|_s_max|_secs)$")
_BYTES = re.compile(r"(_bytes|_bytes_max|_bytes_min|_bytes_per_second|_buffer_size)$")
"""Matches the names of settings in bytes: a name ends with its unit. Names that end in "_batch_size" count blocks."""
_NUMBER = re.compile(r"\s*[-+]?[\d._]+([eE][-+]?\d+)?\s*|inf|nan")


Origin: TypeAlias = Literal["flag", "environment", "file", "default"]


class Setting(msgspec.Struct, frozen=True):
    """One setting with its value and its origin. where: the flag, the variable or the file; None for a default."""

    name: str
    value: Any
    origin: Origin
    where: str | None


def load_config(
    flags: Mapping[str, Any], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Config:
    """Returns the effective settings. A flag replaces a variable, which replaces a value in the file.
    flags: the values by the name of the setting; None: not given. Raises ConfigError with all mistakes."""
    return load_effective(flags, file=file, environment=environment)[0]


def load_effective(
    flags: Mapping[str, Any], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[Config, list[Setting]]:
    """Returns the settings as `load_config` does, and a list with their origins in the order of `Config`."""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    # Mistakes are collected, so that an operator sees all of them at once.
    mistakes = unknown_variables(environment)
    text, in_file = _from_file(file)
    given: dict[Origin, dict[str, Any]] = {
        "file": in_file,
        "environment": _from_environment(environment),
        "flag": {name: value for name, value in flags.items() if value is not None},
    }
    places = {"environment": f"in the environment ({ENVIRONMENT_PREFIX}…)", "flag": "on the command line"}
    lines = cache(partial(_lines_of, text))

    def place_of(name: str) -> str:
        if origins[name] != "file":
            return places[origins[name]]
        line = lines().get(name)
        return f"in {file}" if line is None else f"in {file} line {line}"

    # Later sources replace earlier ones.
    for origin, its in given.items():
        for name, value in its.items():
            origins[name] = origin
            try:
                values[name] = _converted(name, value, place_of)
            except ConfigError as error:
                mistakes += error.mistakes
    # Values with a mistake keep their defaults, so that the others can still be checked together.
    config = Config(**values)
    # Each mistake gets the place where the setting was given, with the line in the file.
    for mistake in _mistakes_together(config):
        name, colon, reason = mistake.partition(": ")
        mistakes.append(f"{name} {place_of(name)}: {reason}" if colon and name in origins else mistake)
    if mistakes:
        raise ConfigError(*mistakes)
    settings = []
    for name in FIELDS:
        origin = origins.get(name, "default")
        where = {"flag": "--" + name.replace("_", "-"), "environment": ENVIRONMENT_PREFIX + name.upper()}
        settings.append(Setting(name, getattr(config, name), origin, (where | {"file": str(file)}).get(origin)))
    return config, settings


def _mistakes_together(config: Config) -> list[str]:
    """Returns the mistakes in settings that are each valid alone, but contradict each other."""
    found = []
    for name, addresses in (
        ("listen", (config.listen,)),
        ("allow_forward", config.allow_forward),
        ("tls_forward_plaintext", config.tls_forward_plaintext),
        ("http", config.http),
        ("grpc", config.grpc_addresses),
        ("mirror_address", () if config.mirror_address is None else (config.mirror_address,)),
    ):
        found += mistakes_in(name, addresses, split_host_port, InvalidAddress)
    found += mistakes_in("grpc", config.grpc, read_services, ValueError)
    found += _origin_mistakes(config)
    found += mistakes_in("consumer_stuck_after", config.consumer_stuck_after, parse_stuck_after, UsageError)
    if config.grpc and not config.block_node:
        found.append("grpc: has no effect without block_node; switch the block node on")
    if config.log_level not in LOG_LEVELS:
        found.append(f"log_level: {config.log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    checks = (_check_block_settings, check_tls_settings, check_channel_settings, make_outgoing_tokens, check_forwarding)
    return found + _failures(checks, config)


def _failures(checks: Iterable[Callable[[Config], object]], config: Config) -> list[str]:
    mistakes: list[str] = []
    for check in checks:
        try:
            check(config)
        except ConfigError as error:
            mistakes += error.mistakes
    return mistakes


def _check_block_settings(config: Config) -> None:
    if config.block_node:
        from stream_node.node.block_services import read_trust

        read_trust(config)


def check_forwarding(config: Config) -> None:
    """Raises ConfigError for a forwarding service on a node with several processes or in a cluster."""
    if config.forwarding and (config.cluster is not None or config.workers > 1):
        raise ConfigError(
            "forwarding: needs a node of one process, because otherwise the connections of its clients are in "
            "different ones; set workers = 1 and leave out cluster, or run the service on a node of its own"
        )


def check_cluster(config: Config) -> None:
    """Raises ConfigError if the settings of the cluster do not fit together."""
    if config.cluster is None:
        if config.cluster_address is not None:
            raise ConfigError("cluster_address: it needs the setting cluster, the name of this node in its cluster")
        return
    if config.database is None:
        raise ConfigError("cluster: its members need a database that they share; set database to a PostgreSQL URL")
    if not _MEMBER_NAME.fullmatch(config.cluster):
        raise ConfigError(
            f"cluster: the name of this node in its cluster has 1 to {NAME_CHARS_MAX} letters, digits, '-', '_' and '.'"
        )
    setting = "listen" if config.cluster_address is None else "cluster_address"
    address = config.cluster_address or config.listen
    try:
        host, port = split_host_port(complete_address(address))
    except InvalidAddress as error:
        raise ConfigError(f"{setting}: {error}") from error
    # The members read this address from the tables, so it must mean something on their machines.
    if is_any_host(host):
        raise ConfigError(
            f"cluster_address: other nodes of the cluster cannot reach this one at {address}; set cluster_address to "
            "the HOST:PORT at which they reach it"
        )
    if setting == "cluster_address" and not port:
        raise ConfigError(f"cluster_address: no node can be reached at port 0 ({address})")


def is_any_host(host: str) -> bool:
    """Whether a listener at this host takes connections at every address of its machine, so it names no address."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        pass
    try:
        # The system also knows short forms, such as "0".
        return socket.inet_aton(host) == bytes(4)
    except OSError:
        return False


def own_address(config: Config, addresses: Sequence[str]) -> str | None:
    """Returns the `host:port` at which other nodes reach this node; None if it listens at every address of its machine.
    It is the setting `mirror_address`, else the first of the addresses at which the node listens."""
    if config.mirror_address is not None:
        return config.mirror_address
    return next((address for address in addresses if not is_any_host(split_host_port(address)[0])), None)


def check_start(config: Config) -> None:
    """Checks what a node checks only at its start: the file of the rules, the operator's workers, whose modules are
    imported, and the protection. Raises ConfigError with all mistakes."""
    # With `insecure`, missing protection is no mistake.
    checks = (check_rules, load_workers)
    mistakes = _failures(checks if config.insecure else (*checks, check_exposure), config)
    if mistakes:
        raise ConfigError(*mistakes)


def _lines_of(text: str) -> dict[str, int]:
    """Returns the line on which each setting of a file begins, by the name of the setting.
    Parses the first line, the first two lines, and so on. A text that ends inside a value is not TOML, and is skipped.
    A new setting begins on the line after the previous text that was valid."""
    lines = text.splitlines(keepends=True)
    found: dict[str, int] = {}
    begins = 1
    for number in range(1, len(lines) + 1):
        try:
            settings = flattened(parse_toml("".join(lines[:number])))
        except (ParseError, ConfigError):
            continue
        for name in settings.keys() - found.keys():
            found[name] = begins
        begins = number + 1
    return found


def _origin_mistakes(config: Config) -> list[str]:
    """Returns a sentence for each origin that no browser would send, such as `*`, which stands for every page."""
    mistakes = []
    for origin in config.http_origins:
        try:
            parts = urlsplit(origin)
            port = "" if parts.port is None or parts.port == _DEFAULT_PORTS.get(parts.scheme) else f":{parts.port}"
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            sent = f"{parts.scheme}://{host}{port}"
        except ValueError:
            parts, sent = urlsplit(""), ""
        if not (parts.scheme and parts.hostname and origin.isascii()):
            mistakes.append(f"http_origins: {origin!r} is not an origin, such as https://shop.example.org")
        elif sent != origin:
            mistakes.append(f"http_origins: {origin!r} is not an origin as browsers send it; write {sent}")
    return mistakes


def _from_file(file: Path | None) -> tuple[str, dict[str, Any]]:
    if file is None:
        return "", {}
    try:
        text = file.read_text(encoding="utf-8")
        return text, flattened(parse_toml(text))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {error}") from error
    except (ParseError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file} is not TOML: {error}") from error


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file under the names of `Config`. Raises ConfigError.
    `[backfill] scanIntervalSecs` becomes `backfill_scan_interval_secs`, and the table `[workers]` becomes `worker`."""
    found = {name: value for name, value in values.items() if name != BACKFILL_TABLE}
    workers = found.get(WORKERS_TABLE)
    if isinstance(workers, dict):
        if "worker" in found:
            raise ConfigError("worker: is given twice, as the table [workers] too")
        # `workers` is also the setting for the number of processes. If there is a table, one of its keys gives it.
        processes = {WORKERS_TABLE: workers[PROCESSES_KEY]} if PROCESSES_KEY in workers else {}
        texts = [worker_text(address, each) for address, each in workers.items() if address != PROCESSES_KEY]
        found = {name: each for name, each in found.items() if name != WORKERS_TABLE} | processes | {"worker": texts}
    table = values.get(BACKFILL_TABLE, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{BACKFILL_TABLE}: is a table, [{BACKFILL_TABLE}], with settings in it")
    for name, value in table.items():
        full = f"{BACKFILL_TABLE}_{_CAPITAL.sub(lambda match: '_' + match[0].lower(), name)}"
        if full in found:
            raise ConfigError(f"{full}: is given twice, as {BACKFILL_TABLE}.{name} too")
        found[full] = value
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the settings that environment variables give. In the value of a list, commas separate the items."""
    found: dict[str, Any] = {}
    for field in FIELDS.values():
        text = environment.get(ENVIRONMENT_PREFIX + field.name.upper())
        if text is not None:
            is_list = isinstance(field.default, tuple)
            found[field.name] = [part.strip() for part in text.split(",") if part.strip()] if is_list else text
    return found


def _converted(name: str, value: Any, place_of: Callable[[str], str]) -> Any:
    field = FIELDS.get(name)
    if field is None:
        near = near_names(name, FIELDS)
        known = f"there is {near}" if near else "`stream-node config show` lists those there are"
        raise ConfigError(f"unknown setting {name!r} {place_of(name)}; {known}")
    try:
        converted = msgspec.convert(_in_units(name, value), field.type, strict=False)
    except (msgspec.ValidationError, UsageError) as error:
        raise ConfigError(f"{name} {place_of(name)}: {error}") from error
    # The system's functions for files and names refuse this character, each with an error of its own.
    texts = converted if isinstance(converted, tuple) else (converted,)
    if any(isinstance(each, str) and "\0" in each for each in texts):
        raise ConfigError(f"{name} {place_of(name)}: has the character NUL, which no setting can have")
    return converted


def _in_units(name: str, value: Any) -> Any:
    """Converts a text with a unit, such as "7d" or "64MiB", to seconds or bytes. Raises UsageError."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    if _TIME.search(name):
        return parse_duration(value)
    return parse_size(value) if _BYTES.search(name) else value
