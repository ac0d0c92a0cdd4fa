"""The node's settings and where each came from: flags, then `STREAM_NODE_*`, then a TOML file, then defaults."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import platformdirs

from index_service.limits import LEASE_LIMITS
from ockam.address import split_host_port
from ockam.errors import InvalidAddress
from ockam.memory import MEMORY_BYTES_MAX
from stream_node.environment import PREFIX, unknown_variables
from stream_node.units import UnitError, parse_duration, parse_size
from stream_service.names import near_names

Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)]
"""A time that must pass; of at most a year, since nobody means more, and clocks and databases end somewhere."""

Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=366 * 86_400)]
LeaseTime: TypeAlias = Annotated[float, msgspec.Meta(ge=0.1, le=86_400)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
MemoryBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=1024 * 1024, le=2**62)]
"""Less than a MiB would hold no answer."""
Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]

ENVIRONMENT_PREFIX = PREFIX
APPLICATION = "stream-node"
BACKFILL_TABLE = "backfill"
_CAPITAL = re.compile("[A-Z]")
_TIME = re.compile(r"(_s|_s_max|_secs)$")
_BYTES = re.compile(r"(_bytes|_bytes_max|_bytes_min|_buffer_size)$")
"""What a setting's name says of its unit; `_batch_size` counts blocks."""
_NUMBER = re.compile(r"\s*[-+]?[\d._]+([eE][-+]?\d+)?\s*|inf|nan")


class ConfigError(Exception):
    """Settings that cannot be used. mistakes: a text each, that names it, where it was set, and what it may be."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `stream-node serve`. Times in seconds, sizes in bytes; where they are given, "7d" and "64MiB" too.

    data_dir: where the database lives; one node at a time may use it.
    listen: `host:port` for TCP; port 0 picks a free one.
    allow_forward: destinations `host:port` that remote peers may route to through this node.
    retention_age_s, retention_messages, retention_bytes: what each stream-partition keeps at most, where it has no
    retention of its own; None keeps everything. retention_interval_s: between two rounds over all streams.
    clock_trust_s: after the clock has jumped, nothing goes for its age until that has lasted so long.
    free_disk_bytes_min: pushes that would leave less free on the disk are refused, so that deleting still works; with 0
    the disk may fill up.
    lease_ttl_s: how long a consumer that shares a stream keeps its partitions after it was last heard.
    block_node: whether blocks are taken and given out (`block_publish`, `block_subscribe`, …). block_chain: names the
    stream that has them, `block_node.<chain>`. block_first: the number that an empty node begins with. block_levels:
    what is checked of a block: structure, merkle, chain, record_proof (needs block_address_book, a file of keys),
    state_proof, tss (needs block_tss_verifier, MODULE:NAME of what makes one). The five behind it say how strictly, see
    `block_node.blocks.settings`; block_known_roots: NUMBER:HEX. block_bytes_max, block_items_max: of one block.
    block_retention_blocks, block_retention_bytes: what is kept of blocks at most; the lowest numbers go first.
    block_publish_…, block_subscribe_…: the limits of publishers and subscribers, see `block_node.publish.limits` and
    `block_node.read.subscription_plan`.
    backfill_…: how missing blocks are fetched from other nodes, see `block_node.backfill.settings`. In a file they may
    stand under `[backfill]` with the names of the specification, such as `scanIntervalSecs`.
    service_addresses, index_addresses: worker addresses of the two services, the first one ours, the others aliases.
    peer_memory_bytes_max: of what all peers together make this node hold: unread answers, waiting pulls, known headers.
    header_timeout_s: without effect (`without_effect`); files that still have it keep working.
    """

    data_dir: str = platformdirs.user_data_dir(APPLICATION)
    listen: str = "127.0.0.1:4000"
    allow_forward: tuple[str, ...] = ()
    service_addresses: tuple[str, ...] = ("stream_service", "stream", "stream_kafka")
    index_addresses: tuple[str, ...] = ("stream_index_service", "stream_index", "stream_kafka_index")
    header_timeout_s: Seconds | None = None
    frame_timeout_s: Seconds = 30.0
    send_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds | None = None
    connections_max: Count = 10_000
    peer_memory_bytes_max: MemoryBytes = MEMORY_BYTES_MAX
    streams_max: Count = 100_000
    partitions_max: Count = 4_096
    pull_bytes_max: Count = 1024 * 1024
    retention_age_s: Amount | None = None
    retention_messages: Amount | None = None
    retention_bytes: Amount | None = None
    retention_interval_s: Seconds = 5.0
    clock_trust_s: Delay = 86_400.0
    free_disk_bytes_min: Amount = 64 * 1024 * 1024
    lease_ttl_s: LeaseTime = LEASE_LIMITS.ttl_s
    block_node: bool = True
    block_chain: str = "blocks"
    block_first: Amount = 0
    block_levels: tuple[str, ...] = ("structure", "merkle", "chain")
    block_address_book: str | None = None
    block_tss_verifier: str | None = None
    block_accept_unchecked_proofs: bool = False
    block_known_roots: tuple[str, ...] = ()
    block_link_record_blocks: bool = True
    block_signatures_min: Count = 1
    block_skip_unknown_signers: bool = False
    block_bytes_max: Count = 1024 * 1024 * 1024
    block_items_max: Count = 5_000_000
    block_publish_sessions_max: Count = 1_000
    block_publish_block_s_max: Seconds = 30.0
    block_publish_processing_s_max: Seconds = 60.0
    block_publish_stall_blocks_max: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 3
    block_publish_ahead_blocks_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256
    block_publish_queued_bytes_max: Count = 32 * 1024 * 1024
    block_publish_resend_s: Seconds = 5.0
    block_publish_idle_s_max: Seconds = 7_200.0
    block_subscribe_sessions_max: Count = 1_000
    block_subscribe_ahead_blocks_max: Amount = 4_000
    block_subscribe_slow_s_max: Seconds = 30.0
    block_subscribe_missing_s_max: Seconds = 30.0
    block_subscribe_duration_s_max: Seconds | None = None
    block_retention_blocks: Count | None = None
    block_retention_bytes: Count | None = None
    backfill_first_block_available: Amount = 0
    backfill_last_block_to_store: Annotated[int, msgspec.Meta(ge=-1, le=2**62)] = -1
    backfill_block_node_sources: tuple[str, ...] = ()
    backfill_scan_interval_secs: Seconds = 60.0
    backfill_max_retries: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    backfill_fetch_batch_size: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 100
    backfill_initial_retry_delay_secs: Seconds = 5.0
    backfill_max_backoff_secs: Seconds = 300.0
    backfill_greedy: bool = False
    backfill_max_incoming_buffer_size: Count = 104_857_600
    backfill_concurrent_fetches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    backfill_fetch_timeout_secs: Seconds = 60.0
    backfill_processing_timeout_secs: Seconds = 10.0
    error_delay_s: Delay = 1.0
    drain_timeout_s: Delay = 10.0
    log_level: str = "info"


def without_effect(config: Config) -> dict[str, str]:
    """The settings given that do nothing any more, each with what to do instead."""
    if config.header_timeout_s is None:
        return {}
    reason = "silent connections stay open now; idle_timeout_s closes them, connections_max bounds them"
    return {"header_timeout_s": reason}


def load_config(
    flags: Mapping[str, Any], *, file: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Config:
    """The settings in force. `flags` with the value None were not given. Raises ConfigError, with all mistakes."""
    values: dict[str, Any] = {}
    mistakes = unknown_variables(environment, FIELDS)
    for source, given in (
        (f"in {file}", _from_file(file)),
        (f"in the environment ({ENVIRONMENT_PREFIX}…)", _from_environment(environment)),
        ("on the command line", {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in given.items():
            try:
                values[name] = _converted(name, value, source)
            except ConfigError as error:
                mistakes += error.mistakes
    config = Config(**values)
    mistakes += _address_mistakes(config)
    if config.log_level not in LOG_LEVELS:
        mistakes.append(f"log_level: {config.log_level!r} is not one of {', '.join(LOG_LEVELS)}")
    try:
        _check_blocks(config)
    except ConfigError as error:
        mistakes += error.mistakes
    if mistakes:
        raise ConfigError(*mistakes)
    return config


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError where a variable is set that nothing reads: whoever misspelt one would get a default in
    silence."""
    mistakes = unknown_variables(environment, FIELDS)
    if mistakes:
        raise ConfigError(*mistakes)


def _address_mistakes(config: Config) -> list[str]:
    mistakes = []
    for name, destinations in (("listen", (config.listen,)), ("allow_forward", config.allow_forward)):
        for destination in destinations:
            try:
                split_host_port(destination)
            except InvalidAddress as error:
                mistakes.append(f"{name}: {error}")
    return mistakes


def _check_blocks(config: Config) -> None:
    # Loaded here, since what blocks need takes its time, and what they need needs this module.
    from stream_node.block_services import check_settings

    check_settings(config)


LOG_LEVELS = ("debug", "info", "warning", "error")


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return flattened(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file} is not TOML: {error}") from error


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says, with `[backfill] scanIntervalSecs` as `backfill_scan_interval_secs`. Raises ConfigError."""
    found = {name: value for name, value in values.items() if name != BACKFILL_TABLE}
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
    """Variables that name a setting; lists are separated by commas."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(Config):
        text = environment.get(ENVIRONMENT_PREFIX + field.name.upper())
        if text is not None:
            is_list = isinstance(field.default, tuple)
            found[field.name] = [part.strip() for part in text.split(",") if part.strip()] if is_list else text
    return found


def _converted(name: str, value: Any, source: str) -> Any:
    field = FIELDS.get(name)
    if field is None:
        near = near_names(name, FIELDS)
        known = f"there is {near}" if near else "`stream-node config show` lists those there are"
        raise ConfigError(f"unknown setting {name!r} {source}; {known}")
    try:
        return msgspec.convert(_in_units(name, value), field.type, strict=False)
    except (msgspec.ValidationError, UnitError) as error:
        raise ConfigError(f"{name} {source}: {error}") from error


def _in_units(name: str, value: Any) -> Any:
    """Seconds or bytes, where a time or a size is written as people do: "7d", "64MiB". Raises UnitError."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    if _TIME.search(name):
        return parse_duration(value)
    return parse_size(value) if _BYTES.search(name) else value


FIELDS = {field.name: field for field in msgspec.structs.fields(Config)}
"""The settings by name, in the order of `Config`."""
