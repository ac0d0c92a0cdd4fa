"""The index service: keeps one position for each consumer, stream and partition, and leases partitions to consumers.

    service = IndexService(runner, wall_clock_us)
    service.register(node)

- A position is the next index to read. The service keeps the highest one ever saved.
- `protocol` defines the messages of the specification, `extensions` our own: fenced saves, lists, sets, leases.
- `lease_machine.LeaseMachine` decides which member has which partition. `lease_groups.LeaseGroups` stores the leases.

The service does not read streams. The names of this package are imported on first use, because clients need only the
messages and must not load the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from index_service.extensions import (
        FENCED_SAVE,
        LEASE,
        POSITIONS,
        SET_POSITION,
        FencedSave,
        Lease,
        LeaseRequest,
        LeaseResponse,
        PositionKey,
        PositionsRequest,
        PositionsResponse,
        SavedPosition,
        SaveResponse,
        SaveStatus,
        SetRequest,
        SetResponse,
    )
    from index_service.limits import LEASE_LIMITS, IndexStatistics, LeaseLimits, LeaseStatistics
    from index_service.protocol import (
        INDEX,
        INDEX_PARTITIONED,
        PARTITIONED_BODY,
        GetIndex,
        GetPartitionIndex,
        Index,
        PartitionIndex,
        SaveIndex,
        SavePartitionIndex,
    )
    from index_service.worker import SERVICE_ADDRESSES, IndexService

__all__ = [
    "FENCED_SAVE",
    "INDEX",
    "INDEX_PARTITIONED",
    "LEASE",
    "LEASE_LIMITS",
    "PARTITIONED_BODY",
    "POSITIONS",
    "SERVICE_ADDRESSES",
    "SET_POSITION",
    "FencedSave",
    "GetIndex",
    "GetPartitionIndex",
    "Index",
    "IndexService",
    "IndexStatistics",
    "Lease",
    "LeaseLimits",
    "LeaseRequest",
    "LeaseResponse",
    "LeaseStatistics",
    "PartitionIndex",
    "PositionKey",
    "PositionsRequest",
    "PositionsResponse",
    "SaveIndex",
    "SavePartitionIndex",
    "SaveResponse",
    "SaveStatus",
    "SavedPosition",
    "SetRequest",
    "SetResponse",
]

_MODULES = ("protocol", "extensions", "limits", "worker")
"""The modules that define the names. Modules that load fast come first."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in __all__:
        for module in map(import_module, (f"{__name__}.{each}" for each in _MODULES)):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
