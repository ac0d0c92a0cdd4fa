"""The example that enriches orders, which crashes now and then, some times in each process."""

from __future__ import annotations

import random

import enrich_worker  # type: ignore[import-not-found]

CRASHES = 4
_enriched = enrich_worker.enriched
_rng = random.Random(5)
_crashes = [0]


def stumble(data: bytes) -> bytes:
    if _crashes[0] < CRASHES and _rng.random() < 0.01:
        _crashes[0] += 1
        raise RuntimeError("a stumble")
    made: bytes = _enriched(data)
    return made


enrich_worker.enriched = stumble
Stumbling = enrich_worker.Enrich
