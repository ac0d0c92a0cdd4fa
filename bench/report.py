"""Report: the findings of a run as they are written to JSON: samples, and the goals that they are held against.

It measures nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from stream_node.bench.run import percentile

OURS = "stream-node"
OUR_DURABILITY = "fsync before every confirm (WAL, synchronous=FULL)"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Figures that were not measured are None.

    work: push, pull, fanout and so on; system: the system that was measured; round: samples of one round ran one after
    the other, so that their ratio holds on a noisy machine.
    window: how many pushes may be unconfirmed, or messages a page; log_messages: stored before the work began.
    p50_us, p99_us, p999_us: times of single pushes, pulls or deliveries, from the call; at a rate, from when it is due.
    server_cpu_s: processor time of the server during the work; for an export, that of the S3 server.
    server_memory_bytes: the server's resident memory at the end. cpu_s: processor time of all processes that took part,
    without an S3 server. written_bytes: bytes that the server had written to the disk. worst_us: the longest push.
    load_percent: the rate of a load, in percent of the most that the system could do.
    synced: whether an answer to a push came after the sync of the disk. False for peers that promise less than we do.
    fsyncs_per_second: of the server, over its whole life, from its counts of commits and checkpoints (two syncs each).
    """

    work: str
    system: str
    durability: str = OUR_DURABILITY
    round: int = 0
    window: int = 0
    size_bytes: int = 0
    streams: int = 1
    clients: int = 1
    log_messages: int = 0
    load_percent: int = 0
    synced: bool = True
    messages: int
    seconds: float
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    server_cpu_s: float | None = None
    server_memory_bytes: int | None = None
    cpu_s: float | None = None
    fsyncs_per_second: float | None = None
    written_bytes: int | None = None
    worst_us: float | None = None

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.per_second * self.size_bytes


class CodecSample(msgspec.Struct, frozen=True):
    """How many PushRequests with 100 bytes of data a codec encodes a second, and how many it decodes and checks."""

    codec: str
    round: int
    encode_per_second: float
    decode_per_second: float


class Goal(msgspec.Struct, frozen=True):
    """One goal. wanted: a lower bound, or an upper bound if `at_most`. measured: None if its work was not run.

    spread: the least and the largest figure of a round, where the goal is judged by the median of several rounds."""

    what: str
    at_most: bool
    wanted: float
    measured: float | None
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


class Report(msgspec.Struct, kw_only=True):
    """The findings of one run, and of earlier runs whose samples it keeps.

    started, ended: the start of the first of these runs, and the end of the last.
    absent: a line for each thing that was asked for and is missing here, with the reason. load: the load of the machine
    over one minute, at the start and the end of each run. quick: whether it was a smoke run, whose figures say little.
    """

    started: str
    ended: str = ""
    machine: str
    sqlite: str
    quick: bool
    load: list[float] = []
    versions: dict[str, str] = {}
    absent: list[str] = []
    samples: list[Sample] = []
    codecs: list[CodecSample] = []
    goals: list[Goal] = []

    def as_json(self) -> bytes:
        """The report, each sample also with messages_per_second and bytes_per_second."""
        encoded = msgspec.to_builtins(self)
        for sample, fields in zip(self.samples, encoded["samples"], strict=True):
            fields["messages_per_second"] = sample.per_second
            fields["bytes_per_second"] = sample.bytes_per_second
        return msgspec.json.encode(encoded)

    def find(self, work: str, **fields: object) -> list[Sample]:
        """The samples of that work whose fields have these values."""
        return [
            sample
            for sample in self.samples
            if sample.work == work and all(getattr(sample, name) == value for name, value in fields.items())
        ]


def ratios(ours: Sequence[Sample], others: Sequence[Sample], figure: Callable[[Sample], float]) -> list[float]:
    """Our figure divided by the other's, for each round in which both ran.

    A round in which the other's figure is 0 gives no ratio: a sample of a quick run can be shorter than one tick of the
    clock that counts processor time.
    """
    theirs = {sample.round: figure(sample) for sample in others}
    return [figure(sample) / theirs[sample.round] for sample in ours if theirs.get(sample.round)]


def typical(samples: Iterable[Sample], figure: Callable[[Sample], float]) -> float | None:
    """The median of a figure over the rounds."""
    figures = [figure(sample) for sample in samples]
    return median(figures) if figures else None


def percentiles(times_us: Iterable[float]) -> dict[str, float]:
    """p50_us, p99_us and p999_us, by nearest rank, so the largest where there are few; nothing without times."""
    ordered = sorted(times_us)
    parts = {"p50_us": 500, "p99_us": 990, "p999_us": 999} if ordered else {}
    return {name: percentile(ordered, part) for name, part in parts.items()}
