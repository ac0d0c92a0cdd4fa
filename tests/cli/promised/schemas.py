"""What `--json` promises, command by command: these fields, of these types, and no other."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is missing, unknown or of another type is an error."""


class Verified(Strict, frozen=True):
    ok: bool
    streams: int
    messages: int
    bytes: int
    problems: list[str]
    problem_count: int


class BackedUp(Strict, frozen=True):
    backup: str
    data_dir: str
    databases: int
    streams: int
    messages: int
    bytes: int
    database_bytes: int
    sha256: str | None
    created_us: int
    verified: bool
    seconds: float


class Restored(Strict, frozen=True):
    backup: str | None
    file: str | None
    data_dir: str
    streams: int
    messages: int
    bytes: int
    created_us: int | None
    newest_us: int | None
    verified: bool
    dry_run: bool
    replaced: bool
    replaced_streams: int | None
    replaced_messages: int | None


class Setting(Strict, frozen=True):
    name: str
    value: Any
    origin: Literal["flag", "environment", "file", "default"]
    where: str | None


class Finding(Strict, frozen=True):
    check: str
    status: Literal["ok", "warning", "wrong"]
    text: str
    values: dict[str, int | float | str | None]


class Examined(Strict, frozen=True):
    ok: bool
    findings: list[Finding]
    settings: list[Setting]


class ConfigChecked(Strict, frozen=True):
    ok: bool
    settings: int
    given: int | None
    mistakes: list[str]


class ConfigShown(Strict, frozen=True):
    settings: list[Setting]


class ContextAdded(Strict, frozen=True):
    name: str
    address: str
    via: list[str]
    current: bool
    service: str = "stream_service"
    index_service: str | None = None
    framing: str = "head"
    tls: dict[str, str] | None = None
    token_file: str | None = None
    peer: str | None = None
    identity: str | None = None
    channel_listener: str | None = None


class ContextsListed(Strict, frozen=True):
    contexts: list[ContextAdded]


class ContextUsed(Strict, frozen=True):
    current: str | None


class ContextRemoved(Strict, frozen=True):
    removed: str
    current: str | None


class Pushed(Strict, frozen=True):
    stream: str
    partition: int
    pushed: int
    failed: int
    first_index: int | None
    last_index: int | None
    not_stored: list[tuple[int, int]]
    unknown: list[tuple[int, int]]
    seconds: float


class HeaderRow(Strict, frozen=True):
    """One of `value` and `value_base64`, as of every text that may be none."""

    name: str
    value: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET


class MessageRow(Strict, frozen=True):
    """Of pull, consume and tail; the optional fields are those of `--times`, `--keys` and `--headers`."""

    partition: int
    index: int
    missing: int | msgspec.UnsetType = msgspec.UNSET
    time_us: int | msgspec.UnsetType = msgspec.UNSET
    key: str | msgspec.UnsetType | None = msgspec.UNSET
    key_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: list[HeaderRow] | msgspec.UnsetType = msgspec.UNSET
    data: str | msgspec.UnsetType = msgspec.UNSET
    data_base64: str | msgspec.UnsetType = msgspec.UNSET


class Kept(Strict, frozen=True):
    age_s: int | None
    messages: int | None
    bytes: int | None


class StreamRow(Strict, frozen=True):
    """Of `stream list` and `stream info`."""

    stream: str
    partition: int
    first_index: int
    next_index: int
    messages: int
    bytes: int
    created_us: int
    first_time_us: int | None
    last_time_us: int | None
    retention: Kept | None


class StreamCreated(Strict, frozen=True):
    """partitions: how many there are now. made: how many of them are new. retention: what was set now, if anything."""

    stream: str
    partitions: int
    made: int
    retention: Kept | None


class StreamCopied(Strict, frozen=True):
    """copied: by this command. there_before: messages that the target had already. made: whether the target is new."""

    source: str
    target: str
    partitions: int
    copied: int
    there_before: int
    made: bool


class StreamDeleted(Strict, frozen=True):
    stream: str
    partitions: int
    deleted: int
    dry_run: bool


class Truncated(Strict, frozen=True):
    stream: str
    partition: int
    deleted: int
    first_index: int
    dry_run: bool


class RetentionSet(Strict, frozen=True):
    stream: str
    partition: int
    before: Kept | None
    retention: Kept | None
    dry_run: bool


class IndexFound(Strict, frozen=True):
    client: str
    stream: str
    partition: int
    index: int | None


class IndexSet(Strict, frozen=True):
    client: str
    stream: str
    partition: int
    before: int | None
    index: int | None
    dry_run: bool


class PositionRow(Strict, frozen=True):
    client: str
    stream: str
    partition: int
    index: int | None
    lag: int | None
    saved_us: int | None
    holder: str | None


class Listening(Strict, frozen=True):
    """tls: how peers connect. insecure: what the node lacks, where it was started with `--insecure` beyond this
    machine."""

    event: Literal["listening"]
    addresses: list[str]
    pid: int
    data_dir: str
    tls: Literal["off", "server", "optional", "mutual"]
    insecure: str | None = None


class Latency(Strict, frozen=True):
    timed: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Benched(Strict, frozen=True):
    """node: None where the node was started for the run."""

    node: str | None
    work: Literal["push", "pull", "latency", "fanout"]
    messages: int
    size_bytes: int
    clients: int
    window: int
    seconds: float
    messages_per_second: float
    bytes_per_second: float
    latency_us: Latency


class DemoStep(Strict, frozen=True):
    what: str
    messages: int
    size_bytes: int
    seconds: float


class DemoProof(Strict, frozen=True):
    confirmed: int
    stored: int
    stored_again: int
    consumed: int
    consumed_again: int
    broken: list[str]


class DemoBlocks(Strict, frozen=True):
    published: int
    received: int
    real: int
    size_bytes: int
    seconds: float
    broken: list[str]


class DemoGuarded(Strict, frozen=True):
    messages: int
    size_bytes: int
    read: int
    refused: list[str]
    audited: int
    seconds: float
    broken: list[str]


class Demonstrated(Strict, frozen=True):
    steps: list[DemoStep]
    proof: DemoProof
    export: Any
    blocks: DemoBlocks
    guarded: DemoGuarded
    pause: dict[Literal["restart_s", "read_again_s"], float] | None


SCHEMAS: dict[str, type[Strict]] = {
    "serve": Listening,
    "push": Pushed,
    "pull": MessageRow,
    "consume": MessageRow,
    "tail": MessageRow,
    "verify": Verified,
    "backup": BackedUp,
    "restore": Restored,
    "doctor": Examined,
    "demo": Demonstrated,
    "bench push": Benched,
    "bench pull": Benched,
    "bench latency": Benched,
    "bench fanout": Benched,
    "stream create": StreamCreated,
    "stream copy": StreamCopied,
    "stream list": StreamRow,
    "stream info": StreamRow,
    "stream delete": StreamDeleted,
    "stream truncate": Truncated,
    "stream retention": RetentionSet,
    "index get": IndexFound,
    "index set": IndexSet,
    "index list": PositionRow,
    "config check": ConfigChecked,
    "config show": ConfigShown,
    "context add": ContextAdded,
    "context list": ContextsListed,
    "context use": ContextUsed,
    "context remove": ContextRemoved,
}
"""What a command prints: one such object, or one a line."""
