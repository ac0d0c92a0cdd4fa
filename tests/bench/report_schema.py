"""The promise of `python -m bench --json`: these fields, of these types, and no other."""

from __future__ import annotations

import msgspec


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that is missing, unknown or of another type is an error."""


class Sample(Strict, frozen=True):
    work: str
    system: str
    durability: str
    round: int
    window: int
    size_bytes: int
    streams: int
    clients: int
    log_messages: int
    load_percent: int
    synced: bool
    messages: int
    seconds: float
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    server_cpu_s: float | None
    server_memory_bytes: int | None
    cpu_s: float | None
    fsyncs_per_second: float | None
    written_bytes: int | None
    worst_us: float | None
    messages_per_second: float
    bytes_per_second: float


class CodecSample(Strict, frozen=True):
    codec: str
    round: int
    encode_per_second: float
    decode_per_second: float


class Goal(Strict, frozen=True):
    what: str
    at_most: bool
    wanted: float
    measured: float | None
    spread: tuple[float, float] | None


class Benched(Strict, frozen=True):
    started: str
    ended: str
    machine: str
    sqlite: str
    quick: bool
    load: list[float]
    versions: dict[str, str]
    absent: list[str]
    samples: list[Sample]
    codecs: list[CodecSample]
    goals: list[Goal]
